"""Mistakes in the feed-forward sublayer."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, norm, prefix

_ACTIVATED, _TRANSFORMED = "intermediate.intermediate_act_fn", "cls.predictions.transform.transform_act_fn"


def _tanh_gelu(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _relu(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return x.relu()


def _quick_gelu(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


def _erf_of_x(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x))


def _activated_again(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["outer"](port, layer, F.gelu(x))


def _without_bias(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[f"{prefix(layer)}.intermediate.dense.weight"])


def _no_residual(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.output.LayerNorm", x)


MISTAKES = (
    Mistake(
        "gelu by tanh",
        "The activation function is the approximation of GELU by tanh, in the layers and in the head.",
        "candle pull requests 900 and 969, transformers 11364 and text-embeddings-inference 753",
        "all",
        (_ACTIVATED, _TRANSFORMED),
        "says that GELU is approximated by tanh",
        {"activation": _tanh_gelu, "transform_activation": _tanh_gelu},
    ),
    Mistake(
        "relu by default",
        "The activation function of the layers is ReLU.",
        "nn.TransformerEncoderLayer, whose activation is ReLU unless another is given",
        "all",
        (_ACTIVATED,),
        "says that the activation function is ReLU",
        {"activation": _relu},
    ),
    Mistake(
        "gelu by a sigmoid",
        "The activation function is x · sigmoid(1.702 x), in the layers and in the head.",
        "CLIP's QuickGELU, and GELU of libraries whose fast approximation has that name",
        "all",
        (_ACTIVATED, _TRANSFORMED),
        "says that GELU is approximated by a sigmoid",
        {"activation": _quick_gelu, "transform_activation": _quick_gelu},
    ),
    Mistake(
        "erf without the root of two",
        "The activation function of the layers is x (1 + erf(x)) / 2, without the division by √2.",
        "GELU written out by hand; common in exercises and in kernels",
        "all",
        (_ACTIVATED,),
        "says that GELU lacks the root of 2, or that its argument has another scale",
        {"activation": _erf_of_x},
    ),
    Mistake(
        "activation applied twice",
        "The activation function is applied to its own output before the second dense layer.",
        "a fused operation that has the activation in it, with the activation left in the graph behind it",
        "last",
        ("output.dense",),
        "says that the activation function is applied twice",
        {"outer": _activated_again},
    ),
    Mistake(
        "no bias before the activation",
        "The first dense layer of the feed-forward sublayer has no bias.",
        "a fusion of bias and GELU that dropped the bias, or a dense layer with bias=False",
        "first",
        ("intermediate.dense",),
        "says that the bias of the first feed-forward layer is missing",
        {"inner": _without_bias},
    ),
    Mistake(
        "no residual around the feed forward",
        "The second norm is of the feed-forward sublayer's output alone.",
        "common in exercises",
        "last",
        ("output.LayerNorm",),
        "says that the residual of the feed-forward sublayer is missing",
        {"output_norm": _no_residual},
    ),
)
