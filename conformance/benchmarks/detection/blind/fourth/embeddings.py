"""Mistakes in the ids, in the tables of embeddings and in their sum."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port
from conformance.benchmarks.detection.blind.third.tools import norm_with

_WORD = ("embeddings.word_embeddings",)
_POSITION = ("embeddings.position_embeddings",)
_TYPE = ("embeddings.token_type_embeddings",)
_NORM = ("embeddings.LayerNorm",)
_NAME = "bert.embeddings.LayerNorm"


def _table(port: Port, name: str) -> Tensor:
    return port.weights[f"bert.embeddings.{name}_embeddings.weight"]


def _positions_of(port: Port, ids: Tensor) -> Tensor:
    """The rows of the table of positions; ids beyond its ends are clamped, as by a gather in JAX or on a GPU."""
    table = _table(port, "position")
    return table[ids.clamp(0, len(table) - 1)]


def _consecutive(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _restarted(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    every = _consecutive(ids)
    starts = torch.ones_like(types, dtype=torch.bool)
    starts[:, 1:] = types[:, 1:] != types[:, :-1]
    return _positions_of(port, every - (every * starts).cummax(1).values)


def _attended(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _positions_of(port, mask.long().cumsum(1) - 1)


def _from_two(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _positions_of(port, _consecutive(ids) + 2)


def _through_batch(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _positions_of(port, torch.arange(ids.numel(), device=ids.device).view_as(ids))


def _sinusoidal(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    width = port.architecture.hidden_size
    frequencies = 10000 ** (-torch.arange(0, width, 2, device=ids.device).double() / width)
    angles = _consecutive(ids)[..., None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(2)[..., :width].to(_table(port, "position").dtype)


def _first_type_twice(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm_with(port, _NAME, word + position + kind + _table(port, "token_type")[0], port.architecture.layer_norm_eps)


def _scaled(port: Port, _: None, ids: Tensor) -> Tensor:
    return _table(port, "word")[ids] * math.sqrt(port.architecture.hidden_size)


def _unmasked_shards(port: Port, _: None, ids: Tensor) -> Tensor:
    table = _table(port, "word")
    half = len(table) // 2
    lower, upper = ids < half, ids >= half
    return table[ids * lower] + table[half + (ids - half) * upper]


def _norm_first(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm_with(port, _NAME, word + kind, port.architecture.layer_norm_eps) + position


def _without_types(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm_with(port, _NAME, word + position, port.architecture.layer_norm_eps)


MISTAKES = (
    Mistake(
        "positions restart with the type",
        "The position ids begin again at 0 where the token type changes.",
        "sequence packing, which takes the second segment for another document",
        "all",
        _POSITION,
        "says that positions restart at the second segment, or depend on the token types",
        {"positions": _restarted},
    ),
    Mistake(
        "positions count attended tokens",
        "The position ids are the running sum of the mask less one, so that padding has none.",
        "code of a decoder with left padding, taken over to BERT",
        "all",
        _POSITION,
        "says that positions are counted over attended tokens, or leave out padding",
        {"positions": _attended},
    ),
    Mistake(
        "positions begin at two",
        "The position ids begin at 2, as in RoBERTa.",
        "a server that has one class for both families",
        "all",
        _POSITION,
        "says that positions begin at 2, or are RoBERTa's, or have an offset",
        {"positions": _from_two},
    ),
    Mistake(
        "positions run on through the batch",
        "The position ids do not restart at a new row; those beyond the table are clamped.",
        "rows packed to one sequence for variable-length attention",
        "all",
        _POSITION,
        "says that positions continue from row to row, or over the whole batch",
        {"positions": _through_batch},
    ),
    Mistake(
        "positions of sines",
        "Sines and cosines are used in place of the learned table.",
        "a port written from 'Attention is all you need'",
        "all",
        _POSITION,
        "says that positions are sinusoidal",
        {"positions": _sinusoidal},
    ),
    Mistake(
        "types left at zero",
        "Every token has type 0, whatever the input says.",
        "bert.cpp, and servers that take only ids and mask",
        "all",
        _TYPE,
        "says that the token types are ignored, or that all are 0",
        {"types": lambda port, _, types: _table(port, "token_type")[torch.zeros_like(types)]},
    ),
    Mistake(
        "type 0 added in advance",
        "The first row of the table of types is folded into the positions, and the types are added still.",
        "an optimised graph that folds constants for one segment",
        "all",
        _NORM,
        "says that token type 0 is added to each token, or types are added twice",
        {"embedding_norm": _first_type_twice},
    ),
    Mistake(
        "words times the root of the width",
        "The word embeddings are multiplied by √H.",
        "the Annotated Transformer, T5X, Gemma",
        "all",
        _WORD,
        "says that word embeddings are scaled by √H",
        {"word": _scaled},
    ),
    Mistake(
        "shards of words without their mask",
        "Of two shards of the vocabulary, that without the token adds its first row.",
        "a tensor-parallel embedding that clamps ids but does not set the rows of others to 0",
        "all",
        _WORD,
        "says that another row is added to the word embeddings, or names shards of the vocabulary",
        {"word": _unmasked_shards},
    ),
    Mistake(
        "positions after the norm",
        "The norm is of words and types; positions are added to what it gives.",
        "a port that takes positions to belong to the encoder",
        "all",
        _NORM,
        "says that positions are added after the norm of the embeddings",
        {"embedding_norm": _norm_first},
    ),
    Mistake(
        "sum without types",
        "The token types are not in the sum of embeddings.",
        "a runtime for DistilBERT that is given a BERT",
        "all",
        _NORM,
        "says that token types are missing from the sum",
        {"embedding_norm": _without_types},
    ),
    Mistake(
        "dropout's factor without dropout",
        "The embeddings are divided by 0.9 at inference.",
        "inverted dropout of one's own, whose mask alone depends on the mode",
        "all",
        ("embeddings.dropout",),
        "says that the factor of dropout is applied, or that embeddings are scaled by 1/0.9",
        {"embedding_dropout": lambda port, _, x: x / 0.9},
    ),
)
"""All of this theme."""
