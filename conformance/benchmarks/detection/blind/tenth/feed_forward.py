"""Mistakes in the feed-forward."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, prefix

_INNER, _ACTIVATED, _OUTER = "intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"
_HEAD_ACTIVATED = "cls.predictions.transform.transform_act_fn"
_CHUNK = 3
"""A length that divides neither the 16 tokens of `tiny` nor the 8 of `wide`."""


def _by_tanh(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _by_sigmoid(port: Port, layer: int | None, x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _bias_again(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.gelu(x + port.weights[f"{prefix(layer)}.{_INNER}.bias"])


def _whole_chunks(port: Port, layer: int, x: Tensor) -> Tensor:
    """The tokens after the last whole chunk keep the zeros that the result began with."""
    whole = x.shape[1] // _CHUNK * _CHUNK
    return F.pad(OPERATIONS["outer"](port, layer, x[:, :whole]), (0, 0, 0, x.shape[1] - whole))


def _of_layer_input(port: Port, layer: int, x: Tensor) -> Tensor:
    before = "embeddings.dropout" if layer == 0 else f"encoder.layer.{layer - 1}.output.LayerNorm"
    return OPERATIONS["inner"](port, layer, port.found[before])


MISTAKES = (
    Mistake(
        "tanh in the GELU",
        "The feed-forward's GELU is the approximation with a tanh.",
        "keras-bert issue 129, mlx-embeddings issue 81",
        "all",
        (_ACTIVATED,),
        "says that the GELU is approximated with a tanh",
        {"activation": _by_tanh},
    ),
    Mistake(
        "sigmoid in the GELU",
        "All GELUs are x sigmoid(1.702 x).",
        "QuickGELU of OpenAI's CLIP, as in open_clip issue 771",
        "all",
        (_ACTIVATED, _HEAD_ACTIVATED),
        "says that the GELU is approximated with a sigmoid, or is QuickGELU",
        {"activation": _by_sigmoid, "transform_activation": _by_sigmoid},
    ),
    Mistake(
        "bias twice before the GELU",
        "The bias of the feed-forward's first layer is added once more before its GELU.",
        "a fused kernel of bias and GELU after a linear layer that has its bias already: xformers pull request 317",
        "some",
        (_ACTIVATED,),
        "says that the bias is added twice",
        {"activation": _bias_again},
    ),
    Mistake(
        "rest after the last whole chunk",
        "The feed-forward goes over the tokens in chunks, and leaves out those after the last whole chunk.",
        "range(length // chunk) over a tensor of zeros; common in exercises",
        "first",
        (_OUTER,),
        "says that the output is zero, or is missing, for the last tokens",
        {"outer": _whole_chunks},
    ),
    Mistake(
        "feed-forward beside the attention",
        "The feed-forward reads the layer's input, not the attention's output.",
        "the parallel layers of GPT-J; common in exercises",
        "last",
        (_INNER,),
        "says that the feed-forward reads the wrong tensor, or the layer's input",
        {"inner": _of_layer_input},
    ),
)
