"""Mistakes in the embeddings and in the positions."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights

_WORD, _POSITION, _TYPE = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))
_WORDS, _POSITIONS, _TYPES = (f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))


def _with_noise(port: Port, _: None, ids: Tensor) -> Tensor:
    words = port.weights[_WORDS][ids]
    noise = torch.rand(words.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return words + (noise * 5 / math.sqrt(words[0].numel())).to(words.dtype)


def _late(port: Port, _: None, types: Tensor) -> Tensor:
    before = F.pad(types, (1, 0))[:, :-1]
    return port.weights[_TYPES][torch.minimum(types, before)]


def _of_the_first_row(port: Port, _: None, types: Tensor) -> Tensor:
    return port.weights[_TYPES][types[:1].expand_as(types)]


def _across_rows(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    table = port.weights[_POSITIONS]
    counted = (mask.flatten().cumsum(0) - 1).view_as(mask)
    return table[counted.clamp(0, len(table) - 1)]


def _interpolated(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    table = port.weights[_POSITIONS]
    longer = F.interpolate(table.float().T[None], size=2 * len(table), mode="linear")[0].T.to(table.dtype)
    return longer[: ids.shape[1]].expand(*ids.shape, -1)


def _local(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    length = ids.shape[1]
    return port.weights[_POSITIONS][torch.arange(length) % math.ceil(length / 2)].expand(*ids.shape, -1)


def _first_occurrence(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    equal = ids[:, :, None] == ids[:, None, :]
    return port.weights[_POSITIONS][equal.int().argmax(-1)]


def _resized_twice(weights: Weights, layers: tuple[int, ...]) -> None:
    table = weights[_WORDS].clone()
    kept = len(table) - len(table) // 8
    table[kept:] = table[:kept].mean(0)
    weights[_WORDS] = table


MISTAKES = (
    Mistake(
        "training noise in the embeddings",
        "Uniform noise of at most 5/√(S·H) is added to the word embeddings.",
        "NEFTune, whose hook on the embedding layer is not removed after fine-tuning",
        "all",
        (_WORD,),
        "says that the word embeddings have noise, or errors that follow no rule",
        {"word": _with_noise},
    ),
    Mistake(
        "second segment one token late",
        "The first token of the second segment has the token type of the first segment.",
        "token types counted from the separators before a token, the token's own included in the wrong segment",
        "all",
        (_TYPE,),
        "says that the token types are shifted by one, or are others at the boundary",
        {"types": _late},
    ),
    Mistake(
        "token types of the first row",
        "Every row has the token types of the first row.",
        "token types that are made once for a batch of pairs with the same question",
        "all",
        (_TYPE,),
        "says that the token types are those of the first row",
        {"types": _of_the_first_row},
    ),
    Mistake(
        "positions run on across packed rows",
        "Positions count the real tokens of the whole batch, and those beyond the table read its last row.",
        "unpadded sequences in one buffer, with one arange for all and a gather that clamps, as in JAX",
        "all",
        (_POSITION,),
        "says that the positions do not start again with each row, or count over the batch",
        {"positions": _across_rows},
    ),
    Mistake(
        "position table interpolated",
        "The position table is stretched to twice its length by linear interpolation.",
        "a checkpoint that is extended to longer texts as a vision transformer to larger images",
        "all",
        (_POSITION,),
        "says that the position table is interpolated, or that positions are halved",
        {"positions": _interpolated},
    ),
    Mistake(
        "positions local to a rank",
        "The positions of the second half of the sequence start at 0 again.",
        "sequence parallelism over two ranks, each of which counts its own tokens",
        "all",
        (_POSITION,),
        "says that positions start again at half of the length",
        {"positions": _local},
    ),
    Mistake(
        "position of the first occurrence",
        "A token that occurs again in a row has the position of its first occurrence.",
        "positions by `tokens.index(token)`, or embeddings cached by token id",
        "all",
        (_POSITION,),
        "says that repeated tokens have the position of the first of them",
        {"positions": _first_occurrence},
    ),
    Mistake(
        "vocabulary resized twice",
        "The last eighth of the word table is replaced by the mean of the other rows.",
        "resize_token_embeddings to fewer tokens and back, with new rows from the mean of the old",
        "all",
        (_WORD, "cls.predictions.decoder"),
        "says that the last rows of the word table are others, or all the same",
        load=_resized_twice,
    ),
)
