"""Most probable tokens for each `[MASK]` according to a masked-LM head. Pure functions of captured activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.model.batch import Batch
from conformance.numerics.formats import Array

MASK = "[MASK]"  # BERT's token for a masked position (Devlin et al. 2019, section 3.1)
MOST = 5
SCORED = ("cls.predictions.decoder", "cls.predictions.log_probs")  # logits and log-probabilities have the same softmax


@dataclass(frozen=True)
class Guess:
    """A predicted token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The predictions for one `[MASK]`.

    Attributes:
        row: index of the row in the batch.
        position: position in the row.
        guesses: for each trace its most probable tokens, in descending order; empty if the trace does not expose scores.
    """

    row: int
    position: int
    guesses: tuple[tuple[Guess, ...], ...]


def predictions(
    read: list[list[str]] | None,
    found: tuple[Mapping[str, Array], ...],
    reader: Callable[[Batch], list[list[str]] | None],
) -> tuple[Prediction, ...]:
    """Return the predictions for every `[MASK]` of a batch; empty if no trace exposes the scores of a masked-LM head.

    Args:
        read: texts of the batch's tokens, row by row; None without a tokenizer.
        found: the activations of each trace on this batch.
        reader: function that returns the texts of a batch's token ids, or None without a tokenizer.
    """
    scores = [next((side[name] for name in SCORED if name in side), None) for side in found]
    places = [(row, at) for row, tokens in enumerate(read or ()) for at, token in enumerate(tokens) if token == MASK]
    if not places or all(side is None for side in scores):
        return ()
    sides = [[()] * len(places) if side is None else _likeliest(side[tuple(zip(*places, strict=True))], reader) for side in scores]
    return tuple(Prediction(*place, guesses) for place, guesses in zip(places, zip(*sides, strict=True), strict=True))


def _likeliest(scores: Array, reader: Callable[[Batch], list[list[str]] | None]) -> list[tuple[Guess, ...]]:
    """Return the most probable tokens of each row of scores (predictions, vocabulary); ties are ordered by id.

    The probabilities are the softmax in float64, exp(s − max s) / Σ exp(s − max s).
    """
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :MOST]
    tokens = reader(Batch.of({"input_ids": best})) or best.astype(str)
    likely = np.take_along_axis(probabilities, best, axis=1)
    return [tuple(Guess(str(t), float(p)) for t, p in zip(*row, strict=True)) for row in zip(tokens, likely, strict=True)]
