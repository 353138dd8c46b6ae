"""Norms, residuals and activation functions."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, norm, prefix

_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
_EVERY_NORM = ("embeddings.LayerNorm", *_NORMS, "cls.predictions.transform.LayerNorm")
_ACTIVATION = ("intermediate.intermediate_act_fn",)


def _parameters(port: Port, name: str) -> tuple[Tensor, Tensor]:
    return port.weights[f"{name}.weight"], port.weights[f"{name}.bias"]


def _epsilon_of_torch(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *_parameters(port, name), 1e-5)


def _annotated(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, name)
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + bias


def _root_mean_square(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    weight, bias = _parameters(port, f"{prefix(layer)}.output.LayerNorm")
    total = x + skip
    return total * (total.square().mean(-1, keepdim=True) + port.architecture.layer_norm_eps).rsqrt() * weight + bias


def _over_sequence(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    weight, bias = _parameters(port, f"{prefix(layer)}.attention.output.LayerNorm")
    total = x + skip
    return F.layer_norm(total, total.shape[1:], eps=port.architecture.layer_norm_eps) * weight + bias


def _one_plus_weight(port: Port, layer: int | None, name: str, x: Tensor) -> Tensor:
    weight, bias = _parameters(port, name)
    return F.layer_norm(x, x.shape[-1:], weight + 1, bias, port.architecture.layer_norm_eps)


def _no_bias(eps: float | None = None) -> Operation:
    def attention_norm(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
        weight, _ = _parameters(port, f"{prefix(layer)}.attention.output.LayerNorm")
        return F.layer_norm(x + skip, x.shape[-1:], weight, None, port.architecture.layer_norm_eps if eps is None else eps)

    return attention_norm


def _norm_then_residual(port: Port, layer: int, x: Tensor, skip: Tensor, *_: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.output.LayerNorm", x) + skip


def _input_of_layer(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.output.LayerNorm", x + hidden)


def _twice(port: Port, layer: int, x: Tensor, skip: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.attention.output.LayerNorm", x + skip + skip)


def _mistyped(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044175 * x**3)))


def _without_bias(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[f"{prefix(layer)}.intermediate.dense.weight"])


def _bias_last(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x) + port.weights[f"{prefix(layer)}.intermediate.dense.bias"]


MISTAKES = (
    Mistake(
        "epsilon of torch", "every norm has torch's epsilon, 1e-5", "nn.LayerNorm(hidden_size)", "all", _EVERY_NORM,
        "epsilon is 1e-5", {"norm": _epsilon_of_torch},
    ),
    Mistake(
        "norm of the Annotated Transformer", "the deviation is unbiased (H - 1), and epsilon 1e-6 is added to it, outside the root",
        "a norm copied from the Annotated Transformer", "all", _EVERY_NORM, "the variance is unbiased; epsilon is outside the root",
        {"norm": _annotated},
    ),
    Mistake(
        "RMSNorm", "the mean is not subtracted", "an engine whose norm was written for Llama", "last", ("output.LayerNorm",),
        "the norm subtracts no mean", {"output_norm": _root_mean_square},
    ),
    Mistake(
        "norm over the sequence too", "mean and variance are over positions and features", "normalized_shape = x.shape[1:]",
        "first", ("attention.output.LayerNorm",), "the norm is over the sequence as well", {"attention_norm": _over_sequence},
    ),
    Mistake(
        "weight plus one", "norms multiply by 1 + weight", "an engine whose norm was written for Gemma", "all", _EVERY_NORM,
        "1 is added to the norm's weight", {"norm": _one_plus_weight},
    ),
    Mistake(
        "norm without bias", "the norm adds no bias", "a fused kernel with a weight alone", "last",
        ("attention.output.LayerNorm",), "the norm's bias is missing", {"attention_norm": _no_bias()},
    ),
    Mistake(
        "norm without bias, epsilon 1e-5", "two at one step: the norm adds no bias, and its epsilon is 1e-5",
        "a fused kernel with a weight alone, at its default", "first", ("attention.output.LayerNorm",),
        "the norm's bias is missing, and epsilon is 1e-5", {"attention_norm": _no_bias(1e-5)},
    ),
    Mistake(
        "residual after the norm", "LayerNorm(f(x)) + x instead of LayerNorm(f(x) + x)", "a port of a pre-norm network", "some",
        ("output.LayerNorm",), "the residual is added after the norm", {"output_norm": _norm_then_residual},
    ),
    Mistake(
        "residual from the layer's input", "the second residual adds the layer's input, not attention's output",
        "a variable named x twice", "all", ("output.LayerNorm",), "the residual comes from the layer's input",
        {"output_norm": _input_of_layer},
    ),
    Mistake(
        "residual twice", "the residual is added by the fused norm and once more before it", "a fused add-and-norm kernel", "some",
        ("attention.output.LayerNorm",), "the residual is added twice", {"attention_norm": _twice},
    ),
    Mistake(
        "tanh-GELU", "GELU in its tanh form", "a library whose gelu approximates by default", "all", _ACTIVATION,
        "GELU takes the tanh form", {"activation": lambda port, _, x: F.gelu(x, approximate="tanh")},
    ),
    Mistake(
        "quick-GELU", "x σ(1.702 x)", "an engine written for CLIP", "last", _ACTIVATION, "GELU takes the sigmoid form",
        {"activation": lambda port, _, x: x * torch.sigmoid(1.702 * x)},
    ),
    Mistake(
        "SiLU", "x σ(x)", "an engine written for Llama", "all", _ACTIVATION, "SiLU instead of GELU",
        {"activation": lambda port, _, x: F.silu(x)},
    ),
    Mistake(
        "mistyped constant of GELU", "the tanh form with 0.044175 for 0.044715", "GELU typed from memory", "first", _ACTIVATION,
        "GELU takes the tanh form, with a constant of 0.044175", {"activation": _mistyped},
    ),
    Mistake(
        "bias after GELU", "GELU(W x) + b: the product's epilogue is in the wrong order", "a fused epilogue", "last",
        ("intermediate.dense", *_ACTIVATION), "the bias is added after GELU", {"inner": _without_bias, "activation": _bias_last},
    ),
)  # fmt: skip
