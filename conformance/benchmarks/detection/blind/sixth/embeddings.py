"""Mistakes in the three lookups and in how they are added."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights

_POSITION = "bert.embeddings.position_embeddings.weight"


def _words(port: Port) -> Tensor:
    return port.weights["bert.embeddings.word_embeddings.weight"]


def _at(port: Port, positions: Tensor) -> Tensor:
    return port.weights[_POSITION][positions]


def _next_id(port: Port, _: None, ids: Tensor) -> Tensor:
    return _words(port)[(ids + 1).clamp(max=port.architecture.vocab_size - 1)]


def _both_shards(port: Port, _: None, ids: Tensor) -> Tensor:
    first = port.architecture.vocab_size // 2
    return _words(port)[ids.clamp(max=first - 1)] + _words(port)[ids.clamp(min=first)]


def _after_cache(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, (torch.arange(ids.shape[1]) + ids.shape[1]).expand_as(ids))


def _counted_from_one(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, mask.cumsum(1) * mask)


def _through_the_batch(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    running = mask.flatten().cumsum(0).view_as(mask) - 1
    return _at(port, running.clamp(0, port.architecture.max_position_embeddings - 1))


def _types(port: Port, types: Tensor) -> Tensor:
    return port.weights["bert.embeddings.token_type_embeddings.weight"][types]


def _type_after_norm(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return port.step("norm", None, "bert.embeddings.LayerNorm", word + position) + kind


def _interpolated(weights: Weights, layers: tuple[int, ...]) -> None:
    table = weights[_POSITION]
    longer = F.interpolate(table.float().T[None], size=2 * len(table), mode="linear")[0].T
    weights[_POSITION] = longer[: len(table)].to(table.dtype)


MISTAKES = (
    Mistake(
        "ids one too high",
        "Every token reads the next row of the word table.",
        "a converter to GGUF that puts a token of its own in front of the vocabulary, but not in front of the table",
        "all",
        ("embeddings.word_embeddings",),
        "says that the row of the next id is read",
        {"word": _next_id},
    ),
    Mistake(
        "both vocabulary shards answer",
        "An id of the other shard is clamped to the shard, and its row is not zeroed before the all-reduce.",
        "a vocabulary-parallel embedding without the mask of the output",
        "all",
        ("embeddings.word_embeddings",),
        "says that a row at the edge of a shard, or another row of the table, is added",
        {"word": _both_shards},
    ),
    Mistake(
        "positions after a stale cache",
        "Positions begin at the length of the previous call.",
        "a key-value cache that is not emptied between two batches",
        "all",
        ("embeddings.position_embeddings",),
        "says that positions begin at the row's length, or are shifted by it",
        {"positions": _after_cache},
    ),
    Mistake(
        "positions counted from one",
        "Positions are the running count of attended tokens, from 1, and 0 for padding.",
        "RoBERTa's create_position_ids_from_input_ids with a padding index of 0",
        "all",
        ("embeddings.position_embeddings",),
        "says that positions count attended tokens, and from 1",
        {"positions": _counted_from_one},
    ),
    Mistake(
        "positions run through the packed batch",
        "Positions go on from one row to the next, up to the last position.",
        "a batch without padding whose positions are arange over all tokens",
        "all",
        ("embeddings.position_embeddings",),
        "says that positions are not reset at the next row",
        {"positions": _through_the_batch},
    ),
    Mistake(
        "first row's token types",
        "All rows have the token types of the first.",
        "a broadcast of (1, S) token types, made for one pair of sentences",
        "all",
        ("embeddings.token_type_embeddings",),
        "says that the first row's token types are used for all rows",
        {"types": lambda port, _, types: _types(port, types[:1].expand_as(types))},
    ),
    Mistake(
        "token types hard-coded to zero",
        "Token types are 0 for all tokens.",
        "llama.cpp's graph of BERT, which adds row 0 of the token types",
        "all",
        ("embeddings.token_type_embeddings",),
        "says that token types are ignored, or all 0",
        {"types": lambda port, _, types: _types(port, types * 0)},
    ),
    Mistake(
        "token type added after the norm",
        "The norm is of word and position; the token type is added to its result.",
        "a fused embedding kernel with the optional token types appended",
        "all",
        ("embeddings.LayerNorm",),
        "says that the token type is added after the norm",
        {"embedding_norm": _type_after_norm},
    ),
    Mistake(
        "position table interpolated",
        "The position table is stretched to twice its length, linearly, and its first half is read.",
        "an extension to longer texts that is left on for texts of the trained length",
        "all",
        ("embeddings.position_embeddings",),
        "says that the position table is stretched or is not the checkpoint's",
        load=_interpolated,
    ),
)
