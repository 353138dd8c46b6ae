"""Mistakes in the feed-forward."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, prefix

_INNER, _ACTIVATED, _OUTER = "intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"
_HEAD = "cls.predictions.transform.transform_act_fn"


def _by_tanh(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _by_sigmoid(port: Port, layer: int, x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _relu(port: Port, layer: int, x: Tensor) -> Tensor:
    return x.relu()


def _without_root_of_two(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + x.erf())


def _twice(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(F.gelu(x))


def _activated_again(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(OPERATIONS["outer"](port, layer, x))


def _without_bias(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.linear(x, port.weights[f"{prefix(layer)}.{_INNER}.weight"])


MISTAKES = (
    Mistake(
        "GELU by tanh everywhere",
        "GELU is the approximation by tanh, in the layers and in the head.",
        "candle pull request 900, text-embeddings-inference pull request 753, keras-bert issue 129",
        "all",
        (_ACTIVATED, _HEAD),
        "says that the GELU is the tanh approximation",
        {"activation": _by_tanh, "transform_activation": _by_tanh},
    ),
    Mistake(
        "GELU by sigmoid",
        "GELU is x times the sigmoid of 1.702 x.",
        "CLIP's QuickGELU, and kernels without erf",
        "all",
        (_ACTIVATED,),
        "says that the GELU is the sigmoid approximation, quick GELU",
        {"activation": _by_sigmoid},
    ),
    Mistake(
        "ReLU by default",
        "The feed-forward has ReLU for GELU.",
        "nn.TransformerEncoderLayer, of which the default activation is ReLU",
        "all",
        (_ACTIVATED,),
        "says that the activation is ReLU",
        {"activation": _relu},
    ),
    Mistake(
        "erf without the root of two",
        "GELU is x / 2 (1 + erf(x)): the root of two is left out.",
        "GELU written by hand where a library has only erf; common in exercises",
        "all",
        (_ACTIVATED,),
        "says that the GELU's argument lacks the division by the root of two, or is scaled wrongly",
        {"activation": _without_root_of_two},
    ),
    Mistake(
        "GELU twice",
        "GELU is applied to its own result.",
        "a linear that has its activation fused in, followed by the activation of the graph",
        "first",
        (_ACTIVATED,),
        "says that the activation is applied twice",
        {"activation": _twice},
    ),
    Mistake(
        "GELU after the second linear as well",
        "The output of the feed-forward goes through GELU, too.",
        "a helper `dense` with the activation built in, used for both linears; common in exercises",
        "some",
        (_OUTER,),
        "says that there is an activation after the second linear",
        {"outer": _activated_again},
    ),
    Mistake(
        "first linear without bias",
        "The bias of the first linear is not added.",
        "the fusion of bias and GELU, when the bias is cut out of the linear and the plain GELU is taken",
        "last",
        (_INNER,),
        "says that the first linear's bias is missing",
        {"inner": _without_bias},
    ),
)
