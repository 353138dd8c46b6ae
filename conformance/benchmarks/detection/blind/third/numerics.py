"""Mistakes of arithmetic: too short sums, a wrong format at one place, approximations, integers."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix, scores
from conformance.benchmarks.detection.blind.third.tools import parameters, rounded

_SCORES = ("attention.self.scores",)
_PROBS = ("attention.self.probs",)
_CONTEXT = ("attention.self.context",)
_ACTIVATION = ("intermediate.intermediate_act_fn",)
_NORM = ("attention.output.LayerNorm",)
_OUTPUT = ("output.LayerNorm",)


def _exponents(x: Tensor, mask: Tensor) -> Tensor:
    """Scores less their largest, in float32; those of masked keys are very low."""
    masked = x.float().masked_fill(mask[:, None, None] == 0, -1e9)
    return masked - masked.amax(-1, keepdim=True)


def _shares(weights: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    attended = weights * mask[:, None, None]
    return (attended / attended.sum(-1, keepdim=True)).to(like.dtype)


def _short_log(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _shares(torch.exp2(_exponents(x, mask) * 1.44), mask, x)


def _cubic_exp(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    y = (_exponents(x, mask) * 1.4426950408889634).clamp(min=-120)
    whole = y.floor()
    part = y - whole
    return _shares((1 + part * (0.6951 + part * (0.2276 + part * 0.0771))) * torch.exp2(whole), mask, x)


def _schraudolph(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    bits = _exponents(x, mask).clamp(min=-80) * 12102203.16 + (127 * 2**23 - 366393)
    return _shares(bits.to(torch.int32).view(torch.float32), mask, x)


def _short_reciprocal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    weights = _exponents(x, mask).exp() * mask[:, None, None]
    mantissa, exponent = torch.frexp(1 / weights.sum(-1, keepdim=True))
    return (weights * torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)).to(x.dtype)


def _byte_probs(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (_shares(_exponents(x, mask).exp(), mask, x.float()).mul(255).round() / 255).to(x.dtype)


def _guarded(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    weights = _exponents(x, mask).exp() * mask[:, None, None]
    return (weights / (weights.sum(-1, keepdim=True) + 1e-3)).to(x.dtype)


def _half_probs(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _shares(_exponents(x.bfloat16(), mask).exp(), mask, x)


def _short_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query.bfloat16().to(query.dtype), key.bfloat16().to(key.dtype))


def _float8_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, *(x.to(torch.float8_e4m3fn).to(x.dtype) for x in (query, key)))


def _short_sum(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    values = port.split(value)
    total = torch.zeros_like(values, dtype=torch.bfloat16)
    for key in range(value.shape[1]):
        total = total + (weights[..., key, None].float() * values[..., key, None, :].float()).bfloat16()
    return total.to(value.dtype).transpose(1, 2).flatten(2)


def _partial_sums(name: str, parts: int) -> Operation:
    def apply(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, bias = parameters(port, f"{prefix(layer)}.{name}")
        pieces = zip(x.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
        total = torch.stack([F.linear(a.float(), b.float()).half() for a, b in pieces]).float().sum(0)
        return (total + bias).to(x.dtype)

    return apply


def _integer_inputs(name: str) -> Operation:
    return lambda port, layer, x: port.linear(f"{prefix(layer)}.{name}", rounded(x, 127))


def _erf_of_three_terms(port: Port, layer: int, x: Tensor) -> Tensor:
    z = x.float() / 2**0.5
    t = 1 / (1 + 0.47047 * z.abs())
    erf = z.sign() * (1 - t * (0.3480242 + t * (-0.0958798 + t * 0.7478556)) * (-z * z).exp())
    return (0.5 * x.float() * (1 + erf)).to(x.dtype)


def _table_of_gelu(port: Port, layer: int, x: Tensor) -> Tensor:
    places = (x.float().clamp(-4, 4) * 32).round() / 32
    return torch.where(x.abs() < 4, F.gelu(places), F.relu(x.float())).to(x.dtype)


def _quadratic_erf(port: Port, layer: int, x: Tensor) -> Tensor:
    z = (x.float() / 2**0.5).abs().clamp(max=1.769)
    erf = x.float().sign() * (-0.2888 * (z - 1.769).square() + 1)
    return (0.5 * x.float() * (1 + erf)).to(x.dtype)


def _half_norm(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.attention.output.LayerNorm")
    summed = (x + skip).half()
    mean = summed.mean(-1, keepdim=True)
    spread = summed.square().mean(-1, keepdim=True) - mean.square()
    return ((summed - mean).float() * torch.rsqrt(spread.float() + port.architecture.layer_norm_eps)).to(x.dtype) * weight + bias


def _quick_root(port: Port, layer: int, x: Tensor, attended: Tensor, hidden: Tensor) -> Tensor:
    weight, bias = parameters(port, f"{prefix(layer)}.output.LayerNorm")
    summed = (x + attended).float()
    spread = summed.var(-1, correction=0, keepdim=True) + port.architecture.layer_norm_eps
    guess = (0x5F3759DF - (spread.view(torch.int32) >> 1)).view(torch.float32)
    root = guess * (1.5 - 0.5 * spread * guess * guess)
    return ((summed - summed.mean(-1, keepdim=True)) * root).to(x.dtype) * weight + bias


def _quick_tanh(port: Port, _: None, x: Tensor) -> Tensor:
    y = x.float().clamp(-3, 3)
    return (y * (27 + y * y) / (27 + 9 * y * y)).to(x.dtype)


MISTAKES = (
    Mistake(
        "log2 e of three digits", "The softmax is by powers of 2, with 1.44 for log₂ e.", "kernels on exp2 with a short constant",
        "all", _PROBS, "says that scores are scaled or there is a temperature, or that exp is approximated", {"probs": _short_log},
    ),
    Mistake(
        "cubic exp", "exp is 2 to the whole part times a cubic polynomial.", "software exponentials of newer attention kernels",
        "all", _PROBS, "says that exp is approximated, or gives no name", {"probs": _cubic_exp},
    ),
    Mistake(
        "exp by the bits of a float", "exp is Schraudolph's, linear between powers of 2.", "fast-math on small devices", "last",
        _PROBS, "says that exp is approximated, or gives no name", {"probs": _schraudolph},
    ),
    Mistake(
        "reciprocal of eleven bits", "The softmax multiplies by a reciprocal of 11 bits.", "rcpps without a Newton step", "some",
        _PROBS, "says that the division is approximated or that the sums are not 1, or gives no name", {"probs": _short_reciprocal},
    ),
    Mistake(
        "probabilities of a byte", "Probabilities are rounded to multiples of 1/255.", "integer attention", "all", _PROBS,
        "says that the probabilities are quantised or rounded", {"probs": _byte_probs},
    ),
    Mistake(
        "softmax guarded against zero", "1e-3 is added to the softmax's denominator.", "masked_softmax() with an epsilon", "first",
        _PROBS, "says that something is added to the denominator, or gives no name", {"probs": _guarded},
    ),
    Mistake(
        "softmax of bfloat16 scores", "Scores are rounded to bfloat16 before the softmax.", "autocast around part of attention",
        "later", _PROBS, "says that scores are rounded or of bfloat16", {"probs": _half_probs},
    ),
    Mistake(
        "scores of bfloat16 inputs", "Query and key are rounded to bfloat16 before their product.",
        "matmul precision set to medium", "first", _SCORES, "says that inputs are rounded or of bfloat16",
        {"scores": _short_scores},
    ),
    Mistake(
        "scores of float8 inputs", "Query and key are rounded to float8 before their product.", "FlashAttention-3's fp8 mode",
        "last", _SCORES, "says that inputs are rounded, quantised or of float8", {"scores": _float8_scores},
    ),
    Mistake(
        "context summed in bfloat16", "The sum over keys is rounded to bfloat16 after every key.",
        "an accumulator of the input's format", "all", _CONTEXT, "says that sums are accumulated in bfloat16 or too short a format",
        {"context": _short_sum},
    ),
    Mistake(
        "partial sums in float16", "The outer product's four partial sums are rounded to float16.",
        "split-K with a workspace of half", "all", ("output.dense",),
        "says that sums are accumulated in float16 or too short a format", {"outer": _partial_sums("output.dense", 4)},
    ),
    Mistake(
        "integer inputs of the outer product", "The outer product's inputs have 255 levels.", "dynamic quantisation", "some",
        ("output.dense",), "says that inputs are quantised or rounded", {"outer": _integer_inputs("output.dense")},
    ),
    Mistake(
        "integer inputs after attention", "The inputs of the attention's output product have 255 levels.",
        "dynamic quantisation of one product", "last", ("attention.output.dense",), "says that inputs are quantised or rounded",
        {"attention_dense": _integer_inputs("attention.output.dense")},
    ),
    Mistake(
        "erf of three terms", "erf is Abramowitz and Stegun's 7.1.25, off by at most 2.5e-5.", "devices without erf", "all",
        _ACTIVATION, "says that erf is approximated, or gives no name", {"activation": _erf_of_three_terms},
    ),
    Mistake(
        "table of GELU", "GELU is read from a table with steps of 1/32.", "look-up tables of accelerators", "some", _ACTIVATION,
        "says that GELU is of a table, quantised, or approximated, or gives no name", {"activation": _table_of_gelu},
    ),
    Mistake(
        "integer-only GELU", "erf is I-BERT's polynomial of degree two.", "I-BERT's IntGELU", "last", _ACTIVATION,
        "says that GELU or erf is approximated by a polynomial", {"activation": _quadratic_erf},
    ),
    Mistake(
        "norm in float16", "The norm's statistics are of float16, by E[x²] − E[x]².", "norms that are not kept in float32", "all",
        _NORM, "says that the norm is computed in float16 or too short a format, or in one pass", {"attention_norm": _half_norm},
    ),
    Mistake(
        "quick inverse root", "The norm's root is the bits' trick with one Newton step.", "fast-math on devices without rsqrt",
        "all", _OUTPUT, "says that the root is approximated, or that the norm is slightly scaled, or gives no name",
        {"output_norm": _quick_root},
    ),
    Mistake(
        "rational tanh", "The pooler's tanh is x (27 + x²) / (27 + 9 x²) up to 3.", "fast tanh from audio code", "first",
        ("pooler.activation",), "says that tanh is approximated or rational, or gives no name", {"pooler_activation": _quick_tanh},
    ),
)  # fmt: skip
