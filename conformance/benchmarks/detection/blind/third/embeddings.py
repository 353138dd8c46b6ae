"""Mistakes in what goes in: vocabularies, token types, positions, and the sum of the embeddings."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights
from conformance.benchmarks.detection.blind.third.tools import norm_with, rounded

_WORD = ("embeddings.word_embeddings",)
_POSITION = ("embeddings.position_embeddings",)
_TYPE = ("embeddings.token_type_embeddings",)
_NORM = ("embeddings.LayerNorm",)
_DROPOUT = ("embeddings.dropout",)

_WORDS = "bert.embeddings.word_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"
_TYPES = "bert.embeddings.token_type_embeddings.weight"
_LAYER_NORM = "bert.embeddings.LayerNorm"


def _blank_line(port: Port, _: None, ids: Tensor) -> Tensor:
    return port.weights[_WORDS][torch.where(ids >= port.architecture.vocab_size // 2, ids - 1, ids)]


def _clamped(port: Port, _: None, ids: Tensor) -> Tensor:
    return port.weights[_WORDS][ids.clamp(max=port.architecture.vocab_size - 9)]


def _eight_bits(port: Port, _: None, ids: Tensor) -> Tensor:
    return rounded(port.weights[_WORDS], 127)[ids]


def _from_one(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return port.weights[_POSITIONS][torch.arange(1, ids.shape[1] + 1).expand_as(ids)]


def _of_the_mask(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return port.weights[_POSITIONS][(mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)]


def _per_segment(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1]).expand_as(ids)
    return port.weights[_POSITIONS][torch.where(types == 1, places - (types == 0).sum(-1, keepdim=True), places)]


def _stretched(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    table = port.weights[_POSITIONS]
    places = (torch.arange(ids.shape[1]) / 2).expand_as(ids)
    low = places.long()
    return torch.lerp(table[low], table[low + 1], (places - low)[..., None].to(table.dtype))


def _cached(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return port.weights[_POSITIONS][(torch.arange(ids.shape[1]) % (ids.shape[1] // 2)).expand_as(ids)]


def _one_type(weights: Weights, _: tuple[int, ...]) -> None:
    weights[_TYPES] = weights[_TYPES][:1].expand_as(weights[_TYPES]).contiguous()


def _root(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    scaled = word * math.sqrt(port.architecture.hidden_size)
    return norm_with(port, _LAYER_NORM, scaled + kind + position, port.architecture.layer_norm_eps)


def _folded(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    folded = position + port.weights[_TYPES][0]
    return norm_with(port, _LAYER_NORM, word + kind + folded, port.architecture.layer_norm_eps)


def _as_distilbert(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm_with(port, _LAYER_NORM, word + position, 1e-5)


def _keras_epsilon(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return norm_with(port, _LAYER_NORM, word + kind + position, 1e-3)


def _whole_row(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    normed = F.layer_norm(word + kind + position, word.shape[1:], eps=port.architecture.layer_norm_eps)
    return normed * port.weights[f"{_LAYER_NORM}.weight"] + port.weights[f"{_LAYER_NORM}.bias"]


def _twice(port: Port, _: None, normed: Tensor) -> Tensor:
    return norm_with(port, _LAYER_NORM, normed, port.architecture.layer_norm_eps)


MISTAKES = (
    Mistake(
        "blank line in the vocabulary", "Ids in the upper half of the vocabulary are one too low.",
        "vocab.txt with a line lost when it was read with strip()", "first", _WORD,
        "says that ids are shifted or that words are looked up in other rows", {"word": _blank_line},
    ),
    Mistake(
        "ids clamped to a smaller vocabulary", "The last eight ids all read the row before them.",
        "clamp() against out-of-range errors of the device", "first", _WORD,
        "says that ids are clamped, or that the last rows are another row", {"word": _clamped},
    ),
    Mistake(
        "word table of eight bits", "Words are looked up in a table rounded to 255 levels of its largest magnitude.",
        "dynamic quantisation that includes embeddings", "first", _WORD, "says that the table is quantised or rounded",
        {"word": _eight_bits},
    ),
    Mistake(
        "positions from one", "Positions are 1, 2, … rather than 0, 1, ….", "tables with a row for padding, as fairseq has",
        "first", _POSITION, "says that positions are shifted by one", {"positions": _from_one},
    ),
    Mistake(
        "positions by the mask's sums", "A position is the number of real tokens before it, and 1 at padding.",
        "prepare_inputs_for_generation of decoders, copied", "first", _POSITION,
        "says that positions are counted by the mask, without padding", {"positions": _of_the_mask},
    ),
    Mistake(
        "positions restart with the pair", "Positions are counted from 0 again in the second segment.",
        "packed batches with position ids for each segment", "first", _POSITION,
        "says that positions restart at the second segment", {"positions": _per_segment},
    ),
    Mistake(
        "positions interpolated", "The table is stretched to twice its length, so that position s reads s / 2.",
        "tables interpolated for longer texts, used for short ones", "first", _POSITION,
        "says that positions are halved, interpolated or scaled", {"positions": _stretched},
    ),
    Mistake(
        "positions of a shorter warm-up", "Positions repeat after half the length.", "a buffer made at the first, shorter call",
        "first", _POSITION, "says that positions wrap around or repeat", {"positions": _cached},
    ),
    Mistake(
        "one token type for both", "The row of the second type is a copy of the first.",
        "type_vocab_size raised from 1 to 2 by copying, as for RoBERTa", "first", _TYPE,
        "says that all tokens have type 0, or that the types' rows are the same", load=_one_type,
    ),
    Mistake(
        "words times the root of the width", "Words are multiplied by √H before they are summed.",
        "Vaswani's Transformer, whose embeddings are scaled", "first", _NORM, "says that the word embeddings are scaled by √H",
        {"embedding_norm": _root},
    ),
    Mistake(
        "first type folded into the positions", "The first type's row is added to all, besides each token's own.",
        "optimisers of graphs that fold constants: position + type 0", "first", _NORM,
        "says that token types are added twice, or the first type's row too often", {"embedding_norm": _folded},
    ),
    Mistake(
        "embeddings as DistilBERT's with PyTorch's epsilon", "No token types in the sum, and an epsilon of 1e-5: two changes.",
        "distilled students filled from a BERT", "first", _NORM,
        "says that token types are left out, that epsilon is 1e-5, or both, and nothing else", {"embedding_norm": _as_distilbert},
    ),
    Mistake(
        "embeddings' epsilon is Keras's", "The embeddings' epsilon is 1e-3.", "keras.layers.LayerNormalization's default", "first",
        _NORM, "says that the epsilon is 1e-3, or larger than the right one", {"embedding_norm": _keras_epsilon},
    ),
    Mistake(
        "embeddings normed over the row", "Mean and variance of the embeddings' norm are over all tokens of a row.",
        "normalized_shape of all axes but the batch", "first", _NORM,
        "says that the norm is over other axes, or over the positions", {"embedding_norm": _whole_row},
    ),
    Mistake(
        "embeddings kept at the dropout's rate", "The embeddings are multiplied by 0.9 in place of dropout.",
        "dropout as of Srivastava 2014, scaled at inference", "first", _DROPOUT, "says that they are scaled by 0.9 or 1 − p",
        {"embedding_dropout": lambda port, _, x: x * 0.9},
    ),
    Mistake(
        "embeddings normed twice", "The norm of the embeddings is applied again.",
        "a norm in front of the encoder kept from an encoder that has its own", "first", _DROPOUT,
        "says that a norm is applied twice or once more", {"embedding_dropout": _twice},
    ),
)  # fmt: skip
