"""Mistakes in the embeddings."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port

_WORD, _POSITION, _TYPE = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))


def _rows(port: Port, name: str, ids: Tensor) -> Tensor:
    return port.weights[f"bert.{name}.weight"][ids]


def _from_two(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _rows(port, _POSITION, torch.arange(2, ids.shape[1] + 2).expand_as(ids))


def _of_attended(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    return _rows(port, _POSITION, (mask.cumsum(-1) - 1).clamp(min=0))


def _restarted(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    """The positions of the second segment, the token types of which are 1, begin at 0."""
    position = torch.arange(ids.shape[1]).expand_as(ids)
    return _rows(port, _POSITION, torch.where(types == 0, position, types.cumsum(-1) - 1))


def _no_types(port: Port, _: None, types: Tensor) -> Tensor:
    return _rows(port, _TYPE, torch.zeros_like(types))


def _times_root(port: Port, _: None, ids: Tensor) -> Tensor:
    return _rows(port, _WORD, ids) * math.sqrt(port.architecture.hidden_size)


def _from_one(port: Port, _: None, ids: Tensor) -> Tensor:
    return _rows(port, _WORD, ids - 1)


MISTAKES = (
    Mistake(
        "positions from 2",
        "The first token has position 2, the second has position 3, and so on.",
        "RoBERTa's positions, which begin after the padding's, as transformers issue 10736 and sentence-transformers pull request "
        "3879 explain",
        "all",
        (_POSITION,),
        "says that the positions are offset by 2, or begin at the wrong number",
        {"positions": _from_two},
    ),
    Mistake(
        "positions of attended tokens only",
        "A token's position is the number of attended tokens before it.",
        "positions from the cumulative sum of the mask, as decoders with padding on the left need: transformers issue 33095, "
        "nnsight pull request 673",
        "all",
        (_POSITION,),
        "says that the positions are counted from the attention mask, or skip the padding",
        {"positions": _of_attended},
    ),
    Mistake(
        "positions restart at the second segment",
        "The positions of the second segment begin at 0 again.",
        "position ids made for each segment before the two are joined; common in exercises",
        "all",
        (_POSITION,),
        "says that the positions restart at the second segment, or depend on the token types",
        {"positions": _restarted},
    ),
    Mistake(
        "all tokens of type 0",
        "Every token gets the embedding of type 0.",
        "ferrox issue 44, bumblebee pull request 444, transformers issue 263",
        "all",
        (_TYPE,),
        "says that the token types are ignored, or taken for 0",
        {"types": _no_types},
    ),
    Mistake(
        "words times the root of the hidden size",
        "The word embeddings are multiplied by the root of the hidden size.",
        "the embeddings of the first Transformer, which the Annotated Transformer has; common in exercises",
        "all",
        (_WORD,),
        "says that the word embeddings are scaled, or multiplied by the root of the hidden size",
        {"word": _times_root},
    ),
    Mistake(
        "ids counted from one",
        "Each token gets the word embedding of the id before its own.",
        "ports to languages whose arrays begin at 1; common in exercises",
        "all",
        (_WORD,),
        "says that the ids of the tokens are shifted by one, or that wrong rows of the table are read",
        {"word": _from_one},
    ),
)
