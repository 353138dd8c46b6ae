"""Mistakes of what runs the network: precision, fused kernels, padding, memory, modes."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, norm, prefix

_PROBS = "attention.self.probs"
_ATTENDED, _OUTPUT = "attention.output.LayerNorm", "output.LayerNorm"
_LINEAR = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_dense": "attention.output.dense",
    "inner": "intermediate.dense",
    "outer": "output.dense",
}
_TF32_DROPPED = 13
_TILE = 32
_BLOCK = 4
_CALIBRATED = 1.0


def _to_tf32(x: Tensor) -> Tensor:
    """Rounded to ten bits of mantissa, halves away from zero."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + (1 << (_TF32_DROPPED - 1))) & -(1 << _TF32_DROPPED)).view(torch.float32)


def _in_tf32(step: str, name: str) -> Operation:
    """That linear layer; only products of float32 are taken in TF32."""

    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return OPERATIONS[step](port, layer, x)
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{kind}"] for kind in ("weight", "bias"))
        return F.linear(_to_tf32(x), _to_tf32(weight)) + bias

    return replaced


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)


def _half_softmax(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """The softmax of float32 scores in float16; those of 16 bits stay as they are."""
    narrow = x.half() if x.dtype == torch.float32 else x
    return _masked(narrow, mask).softmax(-1).to(x.dtype)


def _tail_of_tile(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """The softmax over a whole tile of keys, of which those past the end have a score of 0."""
    return F.pad(_masked(x, mask), (0, _TILE - x.shape[-1])).softmax(-1)[..., : x.shape[-1]]


def _not_rescaled(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """The exponentials of a block of keys are of the largest score so far; earlier ones are not scaled when that grows."""
    scores = x.float().masked_fill(mask[:, None, None] == 0, -torch.inf)
    ends = torch.arange(x.shape[-1]) // _BLOCK * _BLOCK + _BLOCK - 1
    largest = scores.cummax(-1).values[..., ends.clamp(max=x.shape[-1] - 1)]
    exponentials = (scores - largest.clamp(min=torch.finfo(torch.float32).min)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(x.dtype)


def _clipped(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["outer"](port, layer, x.clamp(-_CALIBRATED, _CALIBRATED))


def _overwritten(port: Port, layer: int, x: Tensor, skip: Tensor, hidden: Tensor) -> Tensor:
    return norm(port, layer, f"{prefix(layer)}.{_OUTPUT}", x + x)


def _dropped(port: Port, x: Tensor) -> Tensor:
    return F.dropout(x, port.architecture.hidden_dropout_prob)


def _attention_dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    return F.dropout(x, port.architecture.attention_probs_dropout_prob)


def _embedding_dropped(port: Port, _: None, x: Tensor) -> Tensor:
    return _dropped(port, x)


def _residual_of_dropped(name: str) -> Operation:
    return lambda port, layer, x, skip, *_: norm(port, layer, f"{prefix(layer)}.{name}", _dropped(port, x) + skip)


MISTAKES = (
    Mistake(
        "TF32",
        "The linear layers of the layers round their inputs and weights to ten bits of mantissa.",
        "matrix products in TF32 where float32 is asked for: pytorch issue 67384, tensorflow issue 127346, mlx issue 3860",
        "all",
        tuple(_LINEAR.values()),
        "says that the products are of low precision, or in TF32",
        {step: _in_tf32(step, name) for step, name in _LINEAR.items()},
    ),
    Mistake(
        "softmax in float16",
        "The scores are rounded to float16, and so is the softmax.",
        "autocast or a mixed-precision converter that takes the softmax along",
        "all",
        (_PROBS,),
        "says that the softmax is of low precision, or in half precision",
        {"probs": _half_softmax},
    ),
    Mistake(
        "tail of the tile",
        "The softmax is over a tile of 32 keys, those past the end of the sequence having a score of 0.",
        "fused attention that fills up to a tile and does not mask the tail",
        "all",
        (_PROBS,),
        "says that keys past the end count in the softmax, or that the rows sum to less than one",
        {"probs": _tail_of_tile},
    ),
    Mistake(
        "online softmax not rescaled",
        "The keys are taken in blocks of four, and what is summed is not rescaled when the maximum grows.",
        "rewrites of FlashAttention's online softmax; common in exercises",
        "all",
        (_PROBS,),
        "says that the softmax over blocks is not rescaled, or that blocks of keys have the wrong weight",
        {"probs": _not_rescaled},
    ),
    Mistake(
        "range of the calibration",
        "The inputs of the second linear layer of the feed-forward are clipped to [-1, 1].",
        "static quantisation with a range that is too small, as the amax of 1 in TensorRT issue 4073",
        "all",
        ("output.dense",),
        "says that the inputs of that linear layer are clipped, or saturate",
        {"outer": _clipped},
    ),
    Mistake(
        "residual overwritten",
        "The feed-forward's output is added to itself, not to the attention's.",
        "a planner of buffers, or out=, that has the product written where the residual is",
        "some",
        (_OUTPUT,),
        "says that the second residual is the wrong tensor, or the sublayer's own output",
        {"output_norm": _overwritten},
    ),
    Mistake(
        "model in training",
        "All dropouts of the encoder are on.",
        "model.eval() forgotten; F.dropout without training=self.training",
        "all",
        ("embeddings.dropout", "attention.self.dropout", _ATTENDED, _OUTPUT),
        "says that dropout is on",
        {
            "embedding_dropout": _embedding_dropped,
            "attention_dropout": _attention_dropped,
            "attention_norm": _residual_of_dropped(_ATTENDED),
            "output_norm": _residual_of_dropped(_OUTPUT),
        },
    ),
)
