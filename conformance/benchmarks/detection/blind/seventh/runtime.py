"""Mistakes in caches, in batches and in sequences that are split or packed."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, context, prefix, scores

_KEY, _VALUE = "attention.self.key", "attention.self.value"
_SCORES, _CONTEXT = "attention.self.scores", "attention.self.context"
_AFTER_THE_ENCODER = ("pooler.dense", "cls.predictions.transform.dense")


def _of_the_layer_before(part: str) -> Operation:
    """Keys or values from the entry of the cache that the layer before has written."""
    return lambda port, layer, x: port.found[f"encoder.layer.{layer - 1}.{part}"]


def _of_the_prefix(part: str) -> Operation:
    """Keys or values of which the first 4 are those of the first row."""

    def projected(port: Port, layer: int, x: Tensor) -> Tensor:
        found = port.linear(f"{prefix(layer)}.{part}", x)
        return torch.cat([found[:1, :4].expand(len(found), -1, -1), found[:, 4:]], 1)

    return projected


def _of_another_block(part: str) -> Operation:
    """Keys or values of which the last 4 are those of the row before."""

    def projected(port: Port, layer: int, x: Tensor) -> Tensor:
        found = port.linear(f"{prefix(layer)}.{part}", x)
        return torch.cat([found[:, :-4], found.roll(1, 0)[:, -4:]], 1)

    return projected


def _zigzag(length: int) -> Tensor:
    chunks = torch.arange(length).tensor_split(4)
    return torch.cat([chunks[i] for i in (0, 3, 1, 2)])


def _zigzag_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key[:, _zigzag(key.shape[1])])


def _zigzag_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return context(port, layer, weights, value[:, _zigzag(value.shape[1])])


def _at_the_start(port: Port, _: None, hidden: Tensor) -> Tensor:
    layer = port.architecture.num_hidden_layers - 1
    real = port.found[f"encoder.layer.{layer}.attention.self.probs"].amax((1, 2)) > 0
    order = (~real).int().argsort(dim=-1, stable=True)
    packed = hidden * real[..., None]
    return packed.gather(1, order[..., None].expand_as(packed))


def _of_clamped_slices(port: Port, _: None, hidden: Tensor) -> Tensor:
    rows = len(hidden)
    starts = [max(0, min(4 * i, rows - 4)) for i in range(math.ceil(rows / 4))]
    return torch.cat([hidden[start : start + 4] for start in starts])[:rows]


MISTAKES = (
    Mistake(
        "cache of the layer before",
        "A layer attends to the keys and values of the layer before.",
        "a key-value cache whose index of the layer is off by one",
        "later",
        (_KEY, _VALUE),
        "says that keys and values are those of the layer before",
        {"key": _of_the_layer_before(_KEY), "value": _of_the_layer_before(_VALUE)},
    ),
    Mistake(
        "prefix of the first row",
        "The keys and values of the first 4 positions are those of the first row, in every row.",
        "a prefix cache of 4 tokens a block, for prompts that are the same, whose key is not looked at",
        "all",
        (_KEY, _VALUE),
        "says that keys and values at the first positions are those of the first row",
        {"key": _of_the_prefix(_KEY), "value": _of_the_prefix(_VALUE)},
    ),
    Mistake(
        "block of another row",
        "The keys and values of the last 4 positions are those of the row before.",
        "a paged key-value cache with an entry of the block table that is off by one",
        "last",
        (_KEY, _VALUE),
        "says that keys and values at the last positions are those of another row",
        {"key": _of_another_block(_KEY), "value": _of_another_block(_VALUE)},
    ),
    Mistake(
        "keys in zigzag order",
        "Keys and values are in the order of quarters 0, 3, 1, 2 of the sequence, and the mask is not.",
        "context parallelism that balances the load of a causal mask, and does not put the mask in the same order",
        "all",
        (_SCORES, _CONTEXT),
        "says that the keys are permuted, or are in another order than the mask",
        {"scores": _zigzag_scores, "context": _zigzag_context},
    ),
    Mistake(
        "real tokens moved to the start",
        "The last hidden states of the real tokens are put at the start of the row, and 0 after them.",
        "unpadding that keeps the lengths of the rows but not the positions, as pad_packed_sequence",
        "all",
        _AFTER_THE_ENCODER,
        "says that the heads read other positions, or that tokens are moved",
        {"last": _at_the_start},
    ),
    Mistake(
        "last slice of the batch clamped",
        "In batches of more than 4 rows, the last rows have the last hidden states of rows that come before them.",
        "slices of 4 rows by dynamic_slice, which moves a slice that would end beyond the batch",
        "all",
        _AFTER_THE_ENCODER,
        "says that the heads read other rows",
        {"last": _of_clamped_slices},
    ),
)
