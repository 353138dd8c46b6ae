"""What a masked-LM head says of each `[MASK]`: the likeliest tokens. Pure functions of what was captured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.model.batch import Batch
from conformance.numerics.formats import Array

MASK = "[MASK]"  # BERT's word for a token that is hidden (Devlin et al. 2019, section 3.1)
MOST = 5
SCORED = ("cls.predictions.decoder", "cls.predictions.log_probs")  # either has the same softmax


@dataclass(frozen=True)
class Guess:
    """A token, and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """One `[MASK]`: where it stands, and the likeliest tokens, best first, one a trace; none of a trace that does not show them."""

    row: int
    position: int
    guesses: tuple[tuple[Guess, ...], ...]


def predictions(
    read: list[list[str]] | None,
    found: tuple[Mapping[str, Array], ...],
    reader: Callable[[Batch], list[list[str]] | None],
) -> tuple[Prediction, ...]:
    """Every `[MASK]` of a batch whose tokens are `read`, where one of the traces shows what a masked-LM head makes of it."""
    scores = [next((side[name] for name in SCORED if name in side), None) for side in found]
    places = [(row, at) for row, tokens in enumerate(read or ()) for at, token in enumerate(tokens) if token == MASK]
    if not places or all(side is None for side in scores):
        return ()
    sides = [[()] * len(places) if side is None else _likeliest(side[tuple(zip(*places, strict=True))], reader) for side in scores]
    return tuple(Prediction(*place, guesses) for place, guesses in zip(places, zip(*sides, strict=True), strict=True))


def _likeliest(scores: Array, reader: Callable[[Batch], list[list[str]] | None]) -> list[tuple[Guess, ...]]:
    """Of each row (predictions, vocabulary), by softmax in float64, exp(s − max s) / Σ exp(s − max s); of equals the smaller id."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :MOST]
    tokens = reader(Batch.of({"input_ids": best})) or best.astype(str)
    likely = np.take_along_axis(probabilities, best, axis=1)
    return [tuple(Guess(str(t), float(p)) for t, p in zip(*row, strict=True)) for row in zip(tokens, likely, strict=True)]
