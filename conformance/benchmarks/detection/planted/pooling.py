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


def _pooled(name: str, description: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """Return a mistake in the pooling of the hidden state (B, S, H) under the mask (B, S)."""

    def install(model: Bert) -> None:
        override(_embedding(model).pooled, "forward", wrong)

    return in_place(name, description, install, POOLED, suits=_normalised_mean)


def _normalised(name: str, description: str, wrong: Callable[[Tensor], Tensor]) -> Plant:
    def install(model: Bert) -> None:
        override(_embedding(model), "normal", widely(wrong))

    return in_place(name, description, install, NORMALISED, suits=_normalised_mean)


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    kept = mask[:, :, None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def _mean_for_first(model: Bert) -> None:
    """Use the mean in place of the first token."""
    assert isinstance(model.sentence_embedding, Pooled)
    override(model.sentence_embedding, "forward", _mean)


PLANTS = (
    in_place("pooling-mean", "the mean over unmasked positions for the first token",
             _mean_for_first, NORMALISED, suits=_first_token),
    _pooled("pooling-with-padding", "the mean over all tokens, padding as well", lambda hidden, mask: hidden.mean(1)),
    _pooled("pooling-without-special", "the mean without the first and the last unmasked token", _without_special),
    _pooled("pooling-first-token", "the first token for the mean", lambda hidden, mask: hidden[:, 0]),
    _pooled("pooling-max", "the largest of each feature over unmasked positions for the mean",
            lambda hidden, mask: hidden.masked_fill(mask[:, :, None] == 0, -torch.inf).amax(1)),
    _normalised("pooling-not-normalised", "the embedding is not divided by its length", lambda pooled: pooled),
    _normalised("pooling-normalised-by-largest", "the embedding is divided by its largest feature",
                lambda pooled: pooled / pooled.abs().amax(1, keepdim=True)),
)  # fmt: skip
