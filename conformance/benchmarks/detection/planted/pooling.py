"""Mistakes in sentence embeddings."""

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.heads import Pooled, SentenceEmbedding
from conformance.benchmarks.detection.planted.plant import Plant, in_place, override, widely
from conformance.model.architecture import Architecture

NORMALISED = "sentence_embedding"
POOLED = f"{NORMALISED}.pooled"


def _normalised_mean(a: Architecture) -> bool:
    return a.pooling == "mean" and a.normalize


def _first_token(a: Architecture) -> bool:
    return a.pooling == "cls" and not a.normalize


def _embedding(model: Bert) -> SentenceEmbedding:
    assert isinstance(model.sentence_embedding, SentenceEmbedding)
    return model.sentence_embedding


def _without_special(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the unmasked tokens except the first and the last of them."""
    seen = mask.cumsum(1)
    inner = ((mask == 1) & (seen > 1) & (seen < seen[:, -1:])).to(hidden.dtype)[:, :, None]
    return (hidden * inner).sum(1) / inner.sum(1)


# Incorrect poolings, from the hidden state (B, S, H) and the mask (B, S).
_POOLED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pooling-with-padding": lambda hidden, mask: hidden.mean(1),
    "pooling-without-special": _without_special,
    "pooling-first-token": lambda hidden, mask: hidden[:, 0],
    "pooling-max": lambda hidden, mask: hidden.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1),
}
_NORMALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "pooling-not-normalised": lambda pooled: pooled,
    "pooling-normalised-by-largest": lambda pooled: pooled / pooled.abs().amax(1, keepdim=True),
}


def _pooled(name: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    return in_place(name, lambda m: override(_embedding(m).pooled, "forward", wrong), POOLED, suits=_normalised_mean)


def _normalised(name: str, wrong: Callable[[Tensor], Tensor]) -> Plant:
    return in_place(name, lambda m: override(_embedding(m), "normal", widely(wrong)), NORMALISED, suits=_normalised_mean)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = mask[:, :, None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def _mean_for_first(model: Bert) -> None:
    """Use the mean in place of the first token."""
    assert isinstance(model.sentence_embedding, Pooled)
    override(model.sentence_embedding, "forward", _mean)


PLANTS = (
    in_place("pooling-mean", _mean_for_first, NORMALISED, suits=_first_token),
    *(_pooled(name, wrong) for name, wrong in _POOLED.items()),
    *(_normalised(name, wrong) for name, wrong in _NORMALISED.items()),
)
