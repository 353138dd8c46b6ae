"""Positions, token types and words that are looked up wrongly, and the norm over them."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port


def _at(port: Port, index: Tensor) -> Tensor:
    table = port.weights["bert.embeddings.position_embeddings.weight"]
    return table[index.clamp(0, len(table) - 1)]


def _counted(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1]).expand_as(ids)


def _restarted(port: Port, _: None, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    begins = torch.cat([torch.ones_like(types[:, :1]), (types[:, 1:] != types[:, :-1]).long()], 1)
    return _at(port, _counted(ids) - (_counted(ids) * begins).cummax(1).values)


def _shifted(port: Port, _: None, types: Tensor) -> Tensor:
    return OPERATIONS["types"](port, _, torch.cat([types[:, :1], types[:, :-1]], 1))


def _dropped(port: Port, _: None, x: Tensor) -> Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) >= 0.1
    return x * kept.to(x.dtype) / 0.9


def _positions_after(port: Port, _: None, word: Tensor, position: Tensor, types: Tensor) -> Tensor:
    return port.step("norm", None, "bert.embeddings.LayerNorm", word + types) + position


_POSITION = ("embeddings.position_embeddings",)

MISTAKES = (
    Mistake(
        "positions from two", "positions start at 2, as RoBERTa's do", "one class for BERT and RoBERTa", "all", _POSITION,
        "positions start at 2",
        {"positions": lambda port, _, ids, types, mask: _at(port, _counted(ids) + 2)},
    ),
    Mistake(
        "positions count real tokens", "positions count what is attended to; padding has position 0",
        "position ids made by cumsum of the mask", "all", _POSITION, "positions count the tokens of the mask",
        {"positions": lambda port, _, ids, types, mask: _at(port, (mask.cumsum(1) - 1) * mask)},
    ),
    Mistake(
        "positions restart with the segment", "positions start from 0 again in the second segment",
        "pairs that are encoded one by one and put together", "all", _POSITION, "positions restart where the token type changes",
        {"positions": _restarted},
    ),
    Mistake(
        "positions clipped at five", "positions past 5 are 5: the table was made for shorter text",
        "an export with a fixed length", "all", _POSITION, "positions are clipped",
        {"positions": lambda port, _, ids, types, mask: _at(port, _counted(ids).clamp(max=5))},
    ),
    Mistake(
        "positions count rows", "positions run over the batch, not over the sequence",
        "code whose layout is (S, B, H)", "all", _POSITION, "positions are the number of the row",
        {"positions": lambda port, _, ids, types, mask: _at(port, torch.arange(len(ids))[:, None].expand_as(ids))},
    ),
    Mistake(
        "second segment late by one", "the type of a token is that of the token before it",
        "a tokenizer that gives a separator to the wrong side", "all", ("embeddings.token_type_embeddings",),
        "token types are shifted by one", {"types": _shifted},
    ),
    Mistake(
        "dropout on embeddings left on", "dropout of 0.1 acts on the embeddings in evaluation", "eval() not called", "all",
        ("embeddings.dropout",), "dropout is on", {"embedding_dropout": _dropped},
    ),
    Mistake(
        "positions added after the norm", "the norm is over word and token type; positions are added to its result",
        "a port that takes positions for a module of their own", "all", ("embeddings.LayerNorm",),
        "positions are added after the norm", {"embedding_norm": _positions_after},
    ),
)  # fmt: skip
