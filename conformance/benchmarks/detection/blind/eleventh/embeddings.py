"""Mistakes in the embeddings."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port

_POSITIONS = "embeddings.position_embeddings"
_ROBERTA_OFFSET = 2


def _at(port: Port, positions: Tensor) -> Tensor:
    return port.weights["bert.embeddings.position_embeddings.weight"][positions]


def _offset(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, (torch.arange(ids.shape[1]) + _ROBERTA_OFFSET).expand_as(ids))


def _of_mask(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, (mask.long().cumsum(-1) - 1).clamp(min=0))


def _of_rows(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _at(port, torch.arange(ids.shape[0])[:, None].expand_as(ids))


def _first_type(port: Port, _: None, types: Tensor) -> Tensor:
    return OPERATIONS["types"](port, None, torch.zeros_like(types))


def _scaled(port: Port, _: None, ids: Tensor) -> Tensor:
    return OPERATIONS["word"](port, None, ids) * math.sqrt(port.architecture.hidden_size)


def _sum(port: Port, _: None, word: Tensor, position: Tensor, kind: Tensor) -> Tensor:
    return word + position + kind


MISTAKES = (
    Mistake(
        "RoBERTa's position offset",
        "The first token has position 2.",
        "code for RoBERTa used for BERT, as the reverse of sentence-transformers pull request 3879; transformers issue 5285",
        "all",
        (_POSITIONS,),
        "says that the positions are shifted, by two or by an offset",
        {"positions": _offset},
    ),
    Mistake(
        "positions counted over the mask",
        "A token's position is the number of tokens before it that are attended to.",
        "position_ids = attention_mask.cumsum(-1) - 1, as generation code has it for decoders, used for an encoder",
        "all",
        (_POSITIONS,),
        "says that the positions follow the attention mask, or skip padding",
        {"positions": _of_mask},
    ),
    Mistake(
        "positions along the batch",
        "Every token of the n-th sequence has position n.",
        "code that expects the sequence first, as x + pe[: x.size(0)] does, given the batch first; common in exercises",
        "all",
        (_POSITIONS,),
        "says that the positions run along the batch, or are the wrong ones",
        {"positions": _of_rows},
    ),
    Mistake(
        "token types not passed",
        "Every token is of type 0.",
        "exports and servers whose only inputs are input_ids and attention_mask",
        "all",
        ("embeddings.token_type_embeddings",),
        "says that the token types are ignored, or all 0",
        {"types": _first_type},
    ),
    Mistake(
        "word embeddings scaled",
        "The word embeddings are multiplied by the square root of the hidden size.",
        "the embedding of 'Attention is all you need', as in the tutorials of PyTorch and TensorFlow; common in exercises",
        "all",
        ("embeddings.word_embeddings",),
        "says that the word embeddings are scaled, by the root of the hidden size",
        {"word": _scaled},
    ),
    Mistake(
        "embeddings not normed",
        "The sum of the embeddings goes into the first layer without a norm.",
        "encoders of nn.TransformerEncoder, of which the embeddings are a plain sum; common in exercises",
        "all",
        ("embeddings.LayerNorm",),
        "says that the embeddings' norm is missing",
        {"embedding_norm": _sum},
    ),
)
