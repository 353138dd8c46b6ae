"""Mistakes in the feed-forward."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, prefix

_ACTIVATION, _OUTER = ("intermediate.intermediate_act_fn",), ("output.dense",)
_RANKS = 2


def _tanh(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _sigmoid(port: Port, layer: int, x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


def _relu(port: Port, layer: int, x: Tensor) -> Tensor:
    return x.relu()


def _erf_of_x(port: Port, layer: int, x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x))


def _bias_of_every_rank(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["outer"](port, layer, x) + (_RANKS - 1) * port.weights[f"{prefix(layer)}.output.dense.bias"]


def _first_rank_only(port: Port, layer: int, x: Tensor) -> Tensor:
    kept = math.ceil(x.shape[-1] / _RANKS)
    return OPERATIONS["outer"](port, layer, F.pad(x[..., :kept], (0, x.shape[-1] - kept)))


MISTAKES = (
    Mistake(
        "GELU by tanh",
        "The GELU is its approximation by tanh.",
        "keras-bert issue 129, mlx-embeddings issue 81: gelu_new or the default of a framework for gelu",
        "all",
        _ACTIVATION,
        "says that the GELU is the approximation by tanh",
        {"activation": _tanh},
    ),
    Mistake(
        "GELU by a sigmoid",
        "The GELU is x σ(1.702 x).",
        "quick_gelu, as CLIP has it, and fast kernels",
        "all",
        _ACTIVATION,
        "says that the GELU is the approximation by a sigmoid, or quick GELU",
        {"activation": _sigmoid},
    ),
    Mistake(
        "ReLU",
        "The activation is a ReLU.",
        "the default of nn.TransformerEncoderLayer; common in exercises",
        "some",
        _ACTIVATION,
        "says that the activation is a ReLU",
        {"activation": _relu},
    ),
    Mistake(
        "erf without the root of two",
        "The GELU is 0.5 x (1 + erf(x)).",
        "kernels and graphs that write the GELU out; common in exercises",
        "all",
        _ACTIVATION,
        "says that the erf's argument is not divided by √2, or that the GELU's formula is wrong",
        {"activation": _erf_of_x},
    ),
    Mistake(
        "bias of both ranks",
        "Each of two ranks adds the bias of the second linear layer before the sum over the ranks.",
        "text-generation-inference issue 1036, Paddle pull request 35186",
        "all",
        _OUTER,
        "says that the bias of the output's linear layer is added twice",
        {"outer": _bias_of_every_rank},
    ),
    Mistake(
        "no sum over the ranks",
        "The second linear layer has the first half of its inputs only.",
        "a row-parallel linear layer without its all-reduce",
        "last",
        _OUTER,
        "says that half of the intermediate features do not reach the output",
        {"outer": _first_rank_only},
    ),
)
