"""Mistakes in the products and the activation function of a layer."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, prefix

_ACTIVATION = ("intermediate.intermediate_act_fn",)


def _parameters(port: Port, layer: int, name: str) -> tuple[Tensor, Tensor]:
    return port.weights[f"{prefix(layer)}.{name}.weight"], port.weights[f"{prefix(layer)}.{name}.bias"]


# Products.


def _mean_of_ranks(port: Port, layer: int, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, layer, "attention.output.dense")
    return F.linear(x, weight) / 2 + bias


def _bias_of_ranks(port: Port, layer: int, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, layer, "output.dense")
    return F.linear(x, weight) + 4 * bias


def _cut_to_bfloat16(port: Port, layer: int, x: Tensor) -> Tensor:
    made = port.linear(f"{prefix(layer)}.intermediate.dense", x)
    return (made.float().view(torch.int32) & -0x10000).view(torch.float32).to(made.dtype)


# Activation functions.


def _table_of_halves(port: Port, layer: int, x: Tensor) -> Tensor:
    half = x.half().float()
    looked_up = F.gelu(half, approximate="tanh").half().float()
    return torch.where(x <= -10, 0.0, torch.where(x >= 10, x.float(), looked_up)).to(x.dtype)


def _integer_gelu(port: Port, layer: int, x: Tensor) -> Tensor:
    scaled = x.float() / math.sqrt(2)
    erf = scaled.sign() * (-0.2888 * (scaled.abs().clamp(max=1.769) - 1.769) ** 2 + 1)
    return (x.float() * 0.5 * (1 + erf)).to(x.dtype)


# The matrix product leaves its result without the bias; the bias is added to it for the activation that is shown.

_PRODUCT = "product without bias"


def _leaves_product(port: Port, layer: int, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, layer, "intermediate.dense")
    port.found[_PRODUCT] = F.linear(x, weight)
    return F.linear(x, weight, bias)


def _bias_after(port: Port, layer: int, x: Tensor) -> Tensor:
    _, bias = _parameters(port, layer, "intermediate.dense")
    return F.gelu(port.found.pop(_PRODUCT)) + bias


def _unsigned_bytes(port: Port, layer: int, x: Tensor) -> Tensor:
    made = F.gelu(x).float()
    scale = made.amax() / 255
    return ((made / scale).round().clamp(0, 255) * scale).to(x.dtype)


MISTAKES = (
    Mistake(
        "product averaged over ranks",
        "The partial products of two ranks are averaged instead of summed, before the bias.",
        "tensor parallelism in JAX, with pmean for psum",
        "all",
        ("attention.output.dense",),
        "says that the product is halved, or scaled without the bias",
        {"attention_dense": _mean_of_ranks},
    ),
    Mistake(
        "bias on each of four ranks",
        "Each of four ranks adds the bias before the sum over ranks.",
        "row-parallel linear layers by hand",
        "all",
        ("output.dense",),
        "says that the bias is added several times, or is too large",
        {"outer": _bias_of_ranks},
    ),
    Mistake(
        "cut to bfloat16",
        "The product is cut to bfloat16, not rounded.",
        "a conversion that shifts by sixteen bits",
        "all",
        ("intermediate.dense",),
        "says that the product is truncated, or has the precision of bfloat16",
        {"inner": _cut_to_bfloat16},
    ),
    Mistake(
        "GELU by a table of halves",
        "The tanh form of GELU, for the input rounded to float16, rounded to float16.",
        "ggml's lookup table",
        "all",
        _ACTIVATION,
        "says that GELU is the tanh form",
        {"activation": _table_of_halves},
    ),
    Mistake(
        "GELU of I-BERT",
        "The erf in GELU is I-BERT's clipped quadratic.",
        "an integer-only port",
        "all",
        _ACTIVATION,
        "says that GELU is approximated, or another function",
        {"activation": _integer_gelu},
    ),
    Mistake(
        "bias after the activation",
        "GELU is applied to the product without the bias, which is added afterwards.",
        "a hand-written shader with the activation in the matrix product's epilogue and the bias in the next kernel",
        "last",
        _ACTIVATION,
        "says that the bias is added after the activation",
        {"inner": _leaves_product, "activation": _bias_after},
    ),
    Mistake(
        "GELU in unsigned bytes",
        "GELU's result is rounded to unsigned bytes from zero up, so that negative values become zero.",
        "a quantiser that treats GELU as it treats ReLU",
        "some",
        _ACTIVATION,
        "says that negative values of the activation are lost, or that it is quantised",
        {"activation": _unsigned_bytes},
    ),
)
