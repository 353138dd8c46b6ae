"""Mistakes of precision, fused kernels, packing and batching."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix
from conformance.benchmarks.detection.blind.tenth.fused import fused

_CONTEXT = "attention.self.context"
_LINEAR = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_dense": "attention.output.dense",
    "inner": "intermediate.dense",
    "outer": "output.dense",
}
_BLOCK = 4
"""The keys that the online softmax goes over at once."""
_TILE = 64
"""The keys in a tile of the fused kernel."""
_DROPPED = 0.1
"""BERT's probability of dropout in the attention."""


def _in_bfloat16(name: str) -> Operation:
    def replaced(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{kind}"].bfloat16() for kind in ("weight", "bias"))
        return F.linear(x.bfloat16(), weight, bias).to(x.dtype)

    return replaced


def _masked(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """The scores in float32, (B, h, S, S), those of masked keys at the least number."""
    product = query.float() @ key.float().transpose(-1, -2) / math.sqrt(query.shape[-1])
    return product.masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)


def _not_rescaled(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The online softmax, whose sum and output are not multiplied by `exp(old - new)` where a block has a higher score."""
    every = _masked(query, key, mask)
    highest = torch.full_like(every[..., :1], torch.finfo(torch.float32).min)
    total, output = torch.zeros_like(highest), torch.zeros_like(value, dtype=torch.float32)
    for start in range(0, every.shape[-1], _BLOCK):
        block, values = every[..., start : start + _BLOCK], value[..., start : start + _BLOCK, :].float()
        highest = torch.maximum(highest, block.amax(-1, keepdim=True))
        weights = (block - highest).exp()
        total, output = total + weights.sum(-1, keepdim=True), output + weights @ values
    return (output / total).to(value.dtype)


def _whole_tile(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The softmax over the keys and the zeros that fill up the last tile, the scores of which are 0."""
    every = F.pad(_masked(query, key, mask), (0, -key.shape[-2] % _TILE))
    weights = every.softmax(-1)[..., : key.shape[-2]]
    return (weights @ value.float()).to(value.dtype)


def _packed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The attention over the attended keys of all rows, as one row without boundaries."""

    def joined(x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1, 2)[None].float()

    of_all = _masked(joined(query), joined(key), mask.reshape(1, -1)).softmax(-1) @ joined(value)
    rows, heads, length, size = query.shape
    return of_all.view(heads, rows, length, size).transpose(0, 1).to(value.dtype)


def _with_dropout(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    weights = _masked(query, key, mask).softmax(-1)
    kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)) >= _DROPPED
    return (weights * kept / (1 - _DROPPED) @ value.float()).to(value.dtype)


def _rows_reversed(port: Port, _: None, hidden: Tensor) -> Tensor:
    return hidden.flip(0)


MISTAKES = (
    Mistake(
        "linear layers in bfloat16",
        "The linear layers of the encoder round their inputs, weights and outputs to bfloat16.",
        "autocast left on for a comparison in float32; common in exercises",
        "all",
        tuple(_LINEAR.values()),
        "says that the linear layers compute in bfloat16, or in a lower precision",
        {step: _in_bfloat16(name) for step, name in _LINEAR.items()},
    ),
    Mistake(
        "online softmax not rescaled",
        "What the softmax has summed so far is not rescaled where a later block of keys has a higher score.",
        "kernels in the manner of flash attention, of which flash-attention pull request 2174 mends the running maximum",
        "all",
        (_CONTEXT,),
        "says that the fused attention's softmax, or its weights, are wrong, or that it is not rescaled",
        fused(_not_rescaled),
    ),
    Mistake(
        "tile's padding attended to",
        "The zeros that fill up a tile of 64 keys have the score 0 and their share of the softmax.",
        "flashinfer pull request 5090, TensorRT-LLM pull request 18111",
        "some",
        (_CONTEXT,),
        "says that the weights in the fused attention do not add up to 1, or that padding of the kernel is attended to",
        fused(_whole_tile),
    ),
    Mistake(
        "packed without boundaries",
        "A token attends to the attended tokens of all rows of the batch.",
        "rows packed into one, as in transformers issue 25452, fastrl issue 14 and transformers pull request 46634",
        "all",
        (_CONTEXT,),
        "says that the rows of a batch attend to one another, or depend on each other",
        fused(_packed),
    ),
    Mistake(
        "dropout in the kernel",
        "The fused attention drops a tenth of its weights and scales the others up.",
        "scaled_dot_product_attention with dropout_p in evaluation: PyTorch issue 124464, ms-pred issue 38",
        "last",
        (_CONTEXT,),
        "says that dropout is on",
        fused(_with_dropout),
    ),
    Mistake(
        "order of the rows not restored",
        "The heads get the rows of the batch in reverse order.",
        "batches sorted by length, of which sentence-transformers issue 584 asks and aleph-alpha-client pull request 119 mends one",
        "all",
        ("pooler.dense", "cls.predictions.transform.dense"),
        "says that the rows of the batch are in another order, or that the heads read another row",
        {"last": _rows_reversed},
    ),
)
