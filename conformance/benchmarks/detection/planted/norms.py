"""Mistakes in a layer's norms and residuals; in the norm of attention, unless the definition names the other."""

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, Layer
from conformance.benchmarks.detection.planted.plant import Options, Plant, in_layer, many_heads, override, parameter, widely
from conformance.benchmarks.detection.steps import LayerNorm
from conformance.model.architecture import Architecture

FIRST, SECOND = "attention.output.LayerNorm", "output.LayerNorm"
EPSILON = 1e-5


def _variance(x: Tensor) -> Tensor:
    return x.var(-1, keepdim=True, unbiased=False)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _plain(norm: LayerNorm, x: Tensor) -> Tensor:
    """Return the normalized values without γ and β."""
    return _centred(x) / torch.sqrt(_variance(x) + norm.eps)


def _per_head(norm: LayerNorm, x: Tensor, heads: int) -> Tensor:
    """Compute mean and variance over each head's features."""
    return _plain(norm, x.view(*x.shape[:-1], heads, -1)).flatten(-2) * norm.weight + norm.bias


def _over_positions(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and variance over the positions, including padding."""
    centred = x - x.mean(1, keepdim=True)
    return centred / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + norm.eps) * norm.weight + norm.bias


def _over_sequence(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and variance over positions and features together."""
    return F.layer_norm(x, x.shape[1:], eps=norm.eps) * norm.weight + norm.bias


def _twice(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute LayerNorm(LayerNorm(x)), with γ and β each time."""
    once = _plain(norm, x) * norm.weight + norm.bias
    return _plain(norm, once) * norm.weight + norm.bias


def _first(model: Bert, layer: int) -> LayerNorm:
    return model.layer(layer).attention.output.LayerNorm


def _has_idle_lanes(a: Architecture) -> bool:
    return a.hidden_size.bit_count() > 1


def _with_idle_lanes(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute the variance in a block of the next power of 2, whose idle lanes hold 0 − μ."""
    width = x.shape[-1]
    lanes = F.pad(x, (0, (1 << (width - 1).bit_length()) - width)) - x.mean(-1, keepdim=True)
    variance = (lanes**2).sum(-1, keepdim=True) / width
    return _centred(x) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def _normalised(name: str, description: str, wrong: Callable[[LayerNorm, Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    """Return a mistake in the norm of the residual sum."""

    def install(model: Bert, layer: int) -> None:
        norm = _first(model, layer)
        override(norm, "normalise", widely(lambda x: wrong(norm, x)))

    return in_layer(name, description, install, FIRST, **options)


def _added(name: str, description: str, wrong: Callable[[Tensor, Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    """Return a mistake in the input of the norm, computed from a sublayer's result and the skip connection."""
    return in_layer(name, description, lambda model, layer: override(_first(model, layer), "add", wrong), FIRST, **options)


def _heads_apart(model: Bert, layer: int) -> None:
    """Compute mean and variance over each head's features."""
    norm = _first(model, layer)
    override(norm, "normalise", widely(lambda x: _per_head(norm, x, model.architecture.num_attention_heads)))


def _epsilon(model: Bert, layer: int) -> None:
    """Use the epsilon of torch's own LayerNorm."""
    _first(model, layer).eps = EPSILON


def _shared(model: Bert, layer: int) -> None:
    """Give the second norm the γ and β of the first."""
    norm = model.layer(layer).output.LayerNorm
    norm.weight, norm.bias = _first(model, layer).weight, _first(model, layer).bias


def _residual_after_norm(model: Bert, layer: int) -> None:
    """Compute LayerNorm(x) + skip."""
    norm = _first(model, layer)
    override(norm, "forward", lambda x, skip: norm.normalise(x) + skip)


def _residual_from_layer_input(model: Bert, layer: int) -> None:
    """Add the layer's input in the second residual."""
    changed: Layer = model.layer(layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        inner: Tensor = changed.intermediate(changed.attention(hidden, mask))
        out: Tensor = changed.output(inner, hidden)
        return out

    override(changed, "forward", forward)


def _layer_input_added(model: Bert, layer: int) -> None:
    """Add the layer's input in the second residual, besides the output of attention."""
    changed: Layer = model.layer(layer)

    def forward(hidden: Tensor, mask: Tensor) -> Tensor:
        attended: Tensor = changed.attention(hidden, mask)
        out: Tensor = changed.output(changed.intermediate(attended), attended + hidden)
        return out

    override(changed, "forward", forward)


def _residual_before_norm(model: Bert, layer: int) -> None:
    """Keep the sum that goes into the first norm, and add it in the second residual."""
    first, second, sums = _first(model, layer), model.layer(layer).output.LayerNorm, list[Tensor]()
    right = first.add

    def add(x: Tensor, skip: Tensor) -> Tensor:
        sums.append(right(x, skip))
        return sums[-1]

    override(first, "add", add)
    override(second, "add", lambda x, skip: x + sums.pop())


def _affine_again(model: Bert, layer: int) -> None:
    """Fold γ and β of the first norm into the product that follows it, but leave them in the norm."""
    norm, dense = _first(model, layer), model.layer(layer).intermediate.dense
    dense.bias = parameter(dense.bias + dense.weight @ norm.bias)
    dense.weight = parameter(dense.weight * norm.weight)


def _bias_again(model: Bert, layer: int) -> None:
    """Add the bias of the preceding product once more before the norm."""
    own = model.layer(layer).attention.output
    override(own.LayerNorm, "add", lambda x, skip: x + own.dense.bias + skip)


def _pre_norm(model: Bert, layer: int) -> None:
    """Let attention read its normalized input, while its residual adds the input unchanged."""
    own, norm = model.layer(layer).attention.self, _first(model, layer)
    right = own.forward
    override(own, "forward", lambda hidden, mask: right(norm.normalise(hidden), mask))


def _other_epsilon(a: Architecture) -> bool:
    return a.layer_norm_eps != EPSILON


def _two_norms(a: Architecture) -> bool:
    return not a.shared_layer_norm


PLANTS = (
    _normalised("epsilon-outside-root", "(x − μ) / (√σ² + ε), with ε = 1e-5 for it to be seen",
                lambda n, x: _centred(x) / (_variance(x).sqrt() + EPSILON) * n.weight + n.bias, value=EPSILON),
    _normalised("norm-variance", "the variance divides by n − 1",
                lambda n, x: _centred(x) / torch.sqrt(x.var(-1, keepdim=True) + n.eps) * n.weight + n.bias),
    _normalised("norm-missing", "the sum is handed on as it is", lambda n, x: x),
    _normalised("norm-without-mean", "x / √(mean x² + ε) · γ + β, the mean not taken off",
                lambda n, x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + n.eps) * n.weight + n.bias),
    _normalised("norm-affine-missing", "neither γ nor β", _plain),
    _normalised("norm-bias-missing", "no β", lambda n, x: _plain(n, x) * n.weight),
    _normalised("norm-weight-missing", "no γ", lambda n, x: _plain(n, x) + n.bias),
    _normalised("norm-affine-exchanged", "β for γ and γ for β", lambda n, x: _plain(n, x) * n.bias + n.weight),
    _normalised("norm-statistics-other", "divided by the mean of |x − μ|",
                lambda n, x: _centred(x) / x.abs().mean(-1, keepdim=True) * n.weight + n.bias),
    _normalised("norm-weight-plus-one", "γ + 1 for γ", lambda n, x: _plain(n, x) * (1.0 + n.weight) + n.bias),
    _normalised("norm-second-moment", "(x − μ) / √(mean x² + ε) · γ + β",
                lambda n, x: _centred(x) / torch.sqrt((x * x).mean(-1, keepdim=True) + n.eps) * n.weight + n.bias),
    _normalised("norm-idle-lanes", "the variance includes μ² for each of the lanes up to the next power of 2", _with_idle_lanes,
                suits=_has_idle_lanes),
    _normalised("norm-by-halves", "mean and variance of each half of the features", lambda n, x: _per_head(n, x, 2)),
    _normalised("norm-bias-first", "(z + β) · γ, z the normalised input", lambda n, x: (_plain(n, x) + n.bias) * n.weight),
    _normalised("norm-over-positions", "mean and variance over the positions", _over_positions),
    _normalised("norm-twice", "LayerNorm(LayerNorm(x))", _twice),
    _normalised("norm-over-sequence", "mean and variance over positions and features together", _over_sequence),
    _normalised("norm-unbiased-deviation", "(x − μ) / (s + ε), s² divided by n − 1, with ε = 1e-3 for it to be seen",
                lambda n, x: _centred(x) / (x.std(-1, keepdim=True) + 100.0 * EPSILON) * n.weight + n.bias,
                value=100.0 * EPSILON),
    _normalised("norm-by-variance", "divided by σ² + ε",
                lambda n, x: _centred(x) / (_variance(x) + n.eps) * n.weight + n.bias, reported_as="norm-statistics-other"),
    _added("residual-missing", "LayerNorm(x)", lambda x, skip: x),
    _added("residual-doubled", "LayerNorm(x + 2 skip)", lambda x, skip: x + 2.0 * skip),
    _added("residual-subtracted", "LayerNorm(x − skip)", lambda x, skip: x - skip, reported_as="residual-scaled"),
    _added("residual-scaled", "LayerNorm(x + skip/√2)", lambda x, skip: x + skip * 0.5**0.5, value=0.5**0.5),
    _added("sublayer-missing", "LayerNorm(skip)", lambda x, skip: skip),
    _added("sublayer-scaled", "LayerNorm(0.9 x + skip)", lambda x, skip: 0.9 * x + skip, value=0.9),
    _added("sublayer-doubled", "LayerNorm(2 x + skip)", lambda x, skip: 2.0 * x + skip, reported_as="sublayer-scaled"),
    in_layer("epsilon", "1e-5 for 1e-12", _epsilon, FIRST, suits=_other_epsilon, value=EPSILON),
    in_layer("norm-per-head", "mean and variance over each head's features", _heads_apart, FIRST, suits=many_heads),
    in_layer("norm-shared", "both norms of a layer use the attention output norm's γ and β", _shared, SECOND, suits=_two_norms),
    in_layer("residual-after-norm", "LayerNorm(x) + skip for LayerNorm(x + skip)", _residual_after_norm, FIRST),
    in_layer("residual-from-layer-input", "the second residual of a layer adds the layer's input",
             _residual_from_layer_input, SECOND),
    in_layer("sublayer-bias-twice", "LayerNorm(x + b + skip), with the bias b of the product x", _bias_again, FIRST),
    in_layer("residual-before-norm", "the second residual of a layer adds what goes into the first norm",
             _residual_before_norm, SECOND),
    in_layer("norm-affine-again", "γ and β of a norm are folded into the next product, and stay in the norm",
             _affine_again, "intermediate.dense"),
    in_layer("layer-input-added", "LayerNorm(x + skip + layer input)", _layer_input_added, SECOND),
    in_layer("pre-norm", "query, key and value are computed from the normalised input: attention.output.LayerNorm(x)",
             _pre_norm, *(f"attention.self.{n}" for n in ("query", "key", "value"))),
)  # fmt: skip
