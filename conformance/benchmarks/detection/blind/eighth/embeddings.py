"""Mistakes in the embeddings."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port

_POSITIONS = "embeddings.position_embeddings"
_NORM = "bert.embeddings.LayerNorm"


def _positions_at(port: Port, positions: Tensor) -> Tensor:
    return port.weights["bert.embeddings.position_embeddings.weight"][positions]


def _first_type(port: Port, _: None, types: Tensor) -> Tensor:
    return port.weights["bert.embeddings.token_type_embeddings.weight"][torch.zeros_like(types)]


def _after_the_padding_index(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    padding = 1
    return _positions_at(port, mask.cumsum(1) * mask + padding)


def _times_root_of_width(port: Port, _: None, ids: Tensor) -> Tensor:
    return port.weights["bert.embeddings.word_embeddings.weight"][ids] * math.sqrt(port.architecture.hidden_size)


def _sinusoids(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    table = port.weights["bert.embeddings.position_embeddings.weight"]
    width = table.shape[1]
    rates = torch.exp(torch.arange(0, width, 2, device=ids.device) * (-math.log(10000.0) / width))
    angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(table.dtype).expand(len(ids), -1, -1)


def _of_rows(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _positions_at(port, torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids))


def _first_is_padding(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return _positions_at(port, positions) * (positions != 0)[..., None]


def _unnormed(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return word + kind + position


def _embedded_twice(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    once = port.step("norm", None, _NORM, word + kind + position)
    return port.step("norm", None, _NORM, once + kind + position)


MISTAKES = (
    Mistake(
        "one token type for all tokens",
        "Every token gets the embedding of token type 0, whatever its token type.",
        "CTranslate2 issue 1383 and llama.cpp pull request 21729: token types that are set to 0 in the engine",
        "all",
        ("embeddings.token_type_embeddings",),
        "says that the token types are ignored, or that all of them are 0",
        {"types": _first_type},
    ),
    Mistake(
        "position ids of RoBERTa",
        "Tokens that are attended to have positions from 2 on, counted without padding, and padding has position 1.",
        "create_position_ids_from_input_ids of RoBERTa in a port of BERT; transformers issues 5285 and 10736",
        "all",
        (_POSITIONS,),
        "says that the position ids are those of RoBERTa, or start at 2, or skip padding",
        {"positions": _after_the_padding_index},
    ),
    Mistake(
        "word embeddings times root of width",
        "The word embeddings are multiplied by √H.",
        "The Annotated Transformer's Embeddings module, reused; common in exercises",
        "all",
        ("embeddings.word_embeddings",),
        "says that the word embeddings are multiplied by the root of the width, or by a constant",
        {"word": _times_root_of_width},
    ),
    Mistake(
        "sinusoids for learned positions",
        "The position embeddings are interleaved sines and cosines instead of the learned table.",
        "codertimo/BERT-pytorch, whose position module is the original transformer's (issue 18, pull request 24)",
        "all",
        (_POSITIONS,),
        "says that the positions are sinusoidal instead of learned",
        {"positions": _sinusoids},
    ),
    Mistake(
        "position of the row",
        "Every token of row b gets the embedding of position b.",
        "the tutorial's PositionalEncoding, x + pe[: x.size(0)], for inputs whose first axis is the batch; common in exercises",
        "all",
        (_POSITIONS,),
        "says that the positions are counted along the batch, or that all tokens of a row have one position",
        {"positions": _of_rows},
    ),
    Mistake(
        "position 0 as padding",
        "The embedding of position 0 is 0.",
        "padding_idx=0 given to the table of positions; transformers issue 19265",
        "all",
        (_POSITIONS,),
        "says that the embedding of the first position is 0",
        {"positions": _first_is_padding},
    ),
    Mistake(
        "no norm of the embeddings",
        "The sum of the embeddings goes into the first layer without LayerNorm.",
        "a port on nn.TransformerEncoder, which has no norm of the embeddings; common in exercises",
        "all",
        ("embeddings.LayerNorm",),
        "says that the LayerNorm of the embeddings is missing",
        {"embedding_norm": _unnormed},
    ),
    Mistake(
        "embeddings as inputs_embeds",
        "Position and token type embeddings are added to the normed embeddings again, and the sum is normed again.",
        "the embeddings' output given as inputs_embeds, which are word embeddings; p-lambda/swords issue 2",
        "all",
        ("embeddings.LayerNorm",),
        "says that position and token type embeddings are added twice, or that the embeddings are made twice",
        {"embedding_norm": _embedded_twice},
    ),
)
