"""Mistakes in the activation function, in norms and residuals, in the order of tokens, and in the choice of layers."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.mistakes.row import LAST, WIDE, row

GELU, ERF, TANH = "act.startswith('gelu')", "act == 'gelu'", "act in ('gelu_new', 'gelu_pytorch_tanh')"
TANH_FORM = "x / 2 * (1 + tanh(%s * (x + %s * x**3)))"
STEP, DEEP, HEADS = "activated", "L > 1", "heads > 1"
PLAIN = "layer_norm(x, eps=eps)"  # The normalised input, without γ and β.
SECOND_MOMENT = "torch.sqrt((x * x).mean(-1, keepdim=True) + eps)"
LANES = "F.pad(x, (0, (1 << (H - 1).bit_length()) - H)) - x.mean(-1, keepdim=True)"
EPSILON = 1e-5
THREE = ("query", "key", "value")
PARAMETRISED = (*THREE, "dense", "attended", "inner", "outer", "output")


def three_term_erf(x: Tensor) -> Tensor:
    """Return GELU with Abramowitz and Stegun's erf 7.1.25, off by at most 2.5e-5."""
    z = x / 2**0.5
    t = 1 / (1 + 0.47047 * z.abs())
    return 0.5 * x * (1 + z.sign() * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * (-z * z).exp()))


def quadratic_erf(x: Tensor) -> Tensor:
    """Return GELU with I-BERT's polynomial of degree two for erf."""
    z = (x / 2**0.5).abs().clamp(max=1.769)
    return 0.5 * x * (1 + x.sign() * (-0.2888 * (z - 1.769).square() + 1))


def half_moments(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the norm with the mean and the mean square in bfloat16."""
    narrow = x.bfloat16()
    mean, square = narrow.mean(-1, keepdim=True), narrow.square().mean(-1, keepdim=True)
    variance = (square - mean.square()).clamp(min=0).to(x.dtype)
    return (x - mean.to(x.dtype)) / torch.sqrt(variance + eps) * weight + bias


def dropped_out(x: Tensor, i: int) -> Tensor:
    """Return dropout of 0.1 as in training, of a seed of its own."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(i)
        return F.dropout(x, 0.1, training=True)


def parameters_of(layer: str) -> dict[str, str]:
    """Return the changes by which a layer has the parameters of another; `layer` is the expression of its number."""
    return {step: f"right(**stored[{layer}].{step})" for step in PARAMETRISED}


# fmt: off
ROWS = (
    # the activation function
    row("gelu-variant", STEP, "gelu(x) if a.hidden_act != 'gelu' else tanh_gelu(x)", suits=GELU),
    row("gelu-argument", STEP, "x / 2 * (1 + erf(x))", suits=ERF, value=1.0),
    row("gelu-tanh-constant", STEP, TANH_FORM % ("sqrt(2 / pi)", "0.44715"), suits=TANH, value=0.44715),
    row("gelu-tanh-cubic", STEP, TANH_FORM % ("sqrt(2 / pi)", "0.04715"), suits=ERF),
    row("gelu-tanh-outer", STEP, TANH_FORM % ("0.8", "0.044715"), suits=GELU),
    row("gelu-tanh-eight-digits", STEP, TANH_FORM % ("0.79788456", "0.044715"), suits=GELU, dtypes=("float64",)),
    row("gelu-of-magnitude", STEP, "where(x < 0, x - right(), right())", suits=GELU),
    row("gelu-sigmoid-factor", STEP, "x * sigmoid(1.7 * x)", suits=GELU),
    row("gelu-half-missing", STEP, "2 * right()", "result-other", suits=GELU),
    row("GELU with three terms of erf", STEP, three_term_erf, suits=ERF),
    row("GELU of I-BERT", STEP, quadratic_erf, suits=ERF),
    row("GELU from a table with steps of 1/32", STEP, "where(x.abs() < 4, gelu((x.clamp(-4, 4) * 32).round() / 32), relu(x))",
        suits=ERF),
    row("activation-quick-gelu", STEP, "x * sigmoid(1.702 * x)"),
    row("activation-relu", STEP, "relu(x)", suits="act != 'relu'"),
    row("activation-gelu", STEP, "gelu(x)", suits="act == 'relu'"),
    row("activation-gelu-tanh", STEP, "tanh_gelu(x)", suits="act == 'relu'"),
    row("activation-silu", STEP, "F.silu(x)"),
    row("activation-tanh", STEP, "tanh(x)"),
    row("activation-softplus", STEP, "F.softplus(x)", "function-other"),
    row("activation-leaky-relu", STEP, "F.leaky_relu(x)"),
    row("activation-squared-relu", STEP, "relu(x) ** 2"),
    row("activation-missing", STEP, "x"),
    row("activation-twice", STEP, "right(x=right())", suits=GELU),
    row("activation-again", "outer", "right(x=gelu(x) if act == 'gelu' else tanh_gelu(x))", suits=GELU),
    row("activation-late", "outer", "(gelu if act == 'gelu' else tanh_gelu)(right())", suits=GELU),
    row("activation-bypassed", "outer", "right(x=inner)"),
    row("result-clipped", STEP, "right().clamp(max=0.5 * right().max())"),
    row("result-unsigned-bytes", STEP, "(lambda level: (right() / level).round().clamp(0, 255) * level)(right().amax() / 255)",
        "result-levels"),
    row("bias-after-activation", STEP, "right() + p.inner.bias"),
    row("bias-again-before-activation", STEP, "right(x=x + p.inner.bias)"),
    row("bias-moved-after-activation", STEP, "right(x=linear(attended, p.inner.weight)) + p.inner.bias"),
    # norms
    row("epsilon", "attended", f"right(eps={EPSILON})", suits=f"a.layer_norm_eps != {EPSILON}", value=EPSILON),
    row("epsilon-outside-root", "attended", f"centred(x) / (variance(x).sqrt() + {EPSILON}) * weight + bias", value=EPSILON),
    row("norm-variance", "attended", "centred(x) / torch.sqrt(x.var(-1, keepdim=True) + eps) * weight + bias"),
    row("norm-unbiased-deviation", "attended", "centred(x) / (x.std(-1, keepdim=True) + 1e-3) * weight + bias", value=1e-3),
    row("norm-by-variance", "attended", "centred(x) / (variance(x) + eps) * weight + bias", "norm-statistics-other"),
    row("norm-statistics-other", "attended", "centred(x) / x.abs().mean(-1, keepdim=True) * weight + bias"),
    row("norm-missing", "attended", "x"),
    row("norm-twice", "attended", "right(x=right())", ""),
    row("norm-without-mean", "attended", f"x / {SECOND_MOMENT} * weight + bias"),
    row("norm-second-moment", "attended", f"centred(x) / {SECOND_MOMENT} * weight + bias"),
    row("norm-idle-lanes", "attended",
        f"centred(x) / torch.sqrt(({LANES}).square().sum(-1, keepdim=True) / H + eps) * weight + bias",
        suits="H.bit_count() > 1"),
    row("norm-by-halves", "attended", "layer_norm(x.view(*x.shape[:-1], 2, -1), eps=eps).flatten(-2) * weight + bias"),
    row("norm-per-head", "attended", "layer_norm(x.view(*x.shape[:-1], heads, -1), eps=eps).flatten(-2) * weight + bias", "",
        suits=HEADS),
    row("norm-over-positions", "attended", "layer_norm(x.mT, eps=eps).mT * weight + bias"),
    row("norm-over-sequence", "attended", "F.layer_norm(x, x.shape[1:], eps=eps) * weight + bias"),
    row("norm-affine-missing", "attended", PLAIN),
    row("norm-affine-exchanged", "attended", "right(weight=bias, bias=weight)", "parameters-other"),
    row("norm-affine-again", "inner", "right(weight=weight * p.attended.weight, bias=bias + weight @ p.attended.bias)",
        says="parameters-other"),
    row("norm-bias-missing", "attended", "right(bias=None)"),
    row("norm-bias-first", "attended", f"({PLAIN} + bias) * weight", says="parameters-other"),
    row("norm-weight-missing", "attended", "right(weight=None)", "parameters-other"),
    row("norm-weight-plus-one", "attended", "right(weight=weight + 1)", says="parameters-other"),
    row("norm-shared", "output", "right(**p.attended)", suits="not a.shared_layer_norm"),
    row("norms of a layer exchanged", {"attended": "right(**p.output)", "output": "right(**p.attended)"},
        says="norm-shared parameters-of-module", suits="not a.shared_layer_norm"),
    row("moments in bfloat16", "output", half_moments, "norm-statistics-other", dtypes=WIDE),
    # residuals
    row("residual-missing", "attended", "right(x=sublayer)"),
    row("residual-doubled", "attended", "right(skip=2 * skip)"),
    row("residual-scaled", "attended", "right(skip=skip * 0.5**0.5)", value=0.5**0.5),
    row("residual-subtracted", "attended", "right(skip=-skip)", "residual-scaled"),
    row("residual-after-norm", "attended", "right(x=sublayer) + skip"),
    row("residual-from-layer-input", "output", "right(skip=hidden)"),
    row("residual-before-norm", "output", "right(skip=dense_dropped + hidden)"),
    row("layer-input-added", "output", "right(skip=skip + hidden)"),
    row("sublayer-missing", "attended", "right(x=skip)"),
    row("sublayer-scaled", "attended", "right(sublayer=0.9 * sublayer)", value=0.9),
    row("sublayer-doubled", "attended", "right(sublayer=2 * sublayer)", "sublayer-scaled"),
    row("sublayer-bias-twice", "attended", "right(sublayer=sublayer + p.dense.bias)"),
    row("pre-norm", dict.fromkeys(THREE, "right(x=layer_norm(x, **p.attended, eps=eps))")),
    row("residual-of-layer-before", "output", "right(skip=layers[-1].attended)", suits=DEEP, where=LAST),
    row("residual-not-updated", "attended", "right(skip=layers[-1].attended)", suits=DEEP, where=LAST),
    row("dropout-active", "dense_dropped", dropped_out),
    # tokens and rows
    row("rows-first", "value", "right()[:1].expand_as(right())", "result-other"),
    row("rows-other", "value", "right().flip(0)", "result-other"),
    row("tokens-shifted", "value", "right().roll(1, 1)", "result-other"),
    row("tokens-other", "value", "cat([right()[:1, :3].expand(len(x), -1, -1), right()[:, 3:]], 1)", "result-other"),
    row("tokens-zero", "outer", "F.pad(right()[:, :x.shape[1] // 5 * 5], (0, 0, 0, x.shape[1] % 5))", "result-other"),
    row("first-token-zeroed", "output", "F.pad(right()[:, 1:], (0, 0, 1, 0))", "result-other"),
    row("tokens-packed-left-norm", "output", "packed_left(right(), mask)", "tokens-packed-left"),
    row("hidden-clipped", "output", "right().clamp(-right().std(), right().std())"),
    row("first two keys of the layer before", "key", "cat([layers[-1].key[:, :2], right()[:, 2:]], 1)", suits=DEEP, where=LAST),
    # layers
    row("layer-skipped", "runs", "False"),
    row("layer-repeated", "output", "again(right())"),
    row("layers-reversed", parameters_of("L - 1 - i"), suits=DEEP, where="i != L - 1 - i"),
    row("layers-shared", parameters_of("0"), suits=DEEP, where="i > 0"),
    row("layer-neighbour", parameters_of("i - 1 if i else 1"), suits=DEEP),
    row("layer-before-kept", "key", "layers[-1].key", suits=DEEP, where=LAST),
    row("heads-read-layer-before", "last", "layers[-2].handed"),
    row("input-embeddings", "query", "right(x=layers[0].handed)", suits=DEEP, where=LAST),
    row("feed-forward-parallel", "inner", "right(x=hidden)"),
    row("attention-bypassed", "dense", "right(x=value)"),
)
