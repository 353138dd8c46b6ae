"""Mistakes in the embeddings and in the inputs that they are looked up by."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights, probs

_WORD, _POSITION, _TYPE = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))
_TABLE = "bert.embeddings.word_embeddings.weight"
_TYPES = "token types of the call"


def _type_zero(port: Port, _: None, types: Tensor) -> Tensor:
    return OPERATIONS["types"](port, None, torch.zeros_like(types))


def _kept_types(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    port.found[_TYPES] = types
    return OPERATIONS["positions"](port, None, ids, types, mask)


def _types_for_mask(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    is_last = layer == port.architecture.num_hidden_layers - 1
    return probs(port, layer, x, port.found.pop(_TYPES) if is_last else port.found[_TYPES])


def _at(port: Port, positions: Tensor) -> Tensor:
    return port.weights["bert.embeddings.position_embeddings.weight"][positions]


def _from_two(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, 2 + torch.arange(ids.shape[1]).expand_as(ids))


def _of_attended(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1))


def _sinusoids(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    width = port.architecture.hidden_size
    frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(ids.shape[1])[:, None] * frequencies
    table = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return table.to(port.weights[_TABLE].dtype).expand(*ids.shape, width)


def _times_root_of_width(port: Port, _: None, ids: Tensor) -> Tensor:
    return OPERATIONS["word"](port, None, ids) * math.sqrt(port.architecture.hidden_size)


def _sum_only(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return word + position + kind


def _shift_rows(weights: Weights, layers: tuple[int, ...]) -> None:
    weights[_TABLE] = weights[_TABLE].roll(1, 0)


MISTAKES = (
    Mistake(
        "segments never passed",
        "Every token has the embedding of token type 0.",
        "allennlp issue 5129; exports of two-sentence models with two inputs in place of three",
        "all",
        (_TYPE,),
        "says that the token types are ignored, or all zero",
        {"types": _type_zero},
    ),
    Mistake(
        "segments passed where the mask belongs",
        "The token types are taken as the attention mask, and the token types are left at zero.",
        "transformers issue 2506: the second positional argument of BertModel changed from token_type_ids to attention_mask",
        "all",
        (_TYPE, "attention.self.probs"),
        "says that the token types are ignored, or all zero, and that the mask is wrong, or is the token types",
        {"types": _type_zero, "positions": _kept_types, "probs": _types_for_mask},
    ),
    Mistake(
        "positions from two",
        "The positions begin at 2 in place of 0.",
        "the offset of RoBERTa, padding_idx + 1, as in transformers issue 5285 and ANEForge pull request 257, taken over to BERT",
        "all",
        (_POSITION,),
        "says that the positions are shifted, or begin at 2",
        {"positions": _from_two},
    ),
    Mistake(
        "positions counted along the mask",
        "A token's position is the number of attended tokens before it, and 1 where it is not attended to.",
        "the position_ids that generation makes of a mask with padding at the left; transformers issue 1761 discusses the like",
        "all",
        (_POSITION,),
        "says that the positions depend on the mask, or do not count padding",
        {"positions": _of_attended},
    ),
    Mistake(
        "sinusoids for positions",
        "The position embeddings are the sines and cosines of the first transformer, not the checkpoint's table.",
        "codertimo/BERT-pytorch; common in exercises",
        "all",
        (_POSITION,),
        "says that the positions are sinusoidal, or not the learned table",
        {"positions": _sinusoids},
    ),
    Mistake(
        "word embeddings times the root of the width",
        "The word embeddings are multiplied by the root of the hidden size.",
        "the first transformer's embeddings, as in The Annotated Transformer; common in exercises",
        "all",
        (_WORD,),
        "says that the word embeddings are scaled, by the root of the hidden size or by a constant",
        {"word": _times_root_of_width},
    ),
    Mistake(
        "embeddings not normed",
        "The sum of the embeddings goes into the first layer without its norm.",
        "embeddings written by hand before nn.TransformerEncoder; common in exercises",
        "all",
        ("embeddings.LayerNorm",),
        "says that the norm of the embeddings is missing",
        {"embedding_norm": _sum_only},
    ),
    Mistake(
        "word table one row off",
        "Row i of the word embeddings has what belongs to row i - 1.",
        "a special token put in front of the vocabulary, or a vocabulary file with a line too many",
        "all",
        (_WORD, "cls.predictions.decoder"),
        "says that the rows of the word embeddings are shifted by one, or that the ids are off by one",
        load=_shift_rows,
    ),
)
