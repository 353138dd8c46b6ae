"""Counts of what a pipeline draws, each within exact binomial bounds, and rows that are wrong, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.checks.data.examples import Examples, Flags
from conformance.judge.statistics import binomial_bounds, is_binomial, share

_SHOWN = 12  # tokens of a row that is shown


@dataclass(frozen=True)
class Count:
    """How many of n trials came out, of those that each come out by themselves, with a probability.

    Attributes:
        trials: what is counted, as a plural: "tokens of the corpus".
        what: what came out: "are chosen".
        found, total: how many came out, and n.
        probability: of one.
    """

    trials: str
    what: str
    found: int
    total: int
    probability: float

    @classmethod
    def of(cls, trials: str, what: str, came_out: Any, probability: float) -> "Count":
        """Of an array of trials, true where one came out."""
        return cls(trials, what, int(np.count_nonzero(came_out)), np.size(came_out), probability)

    def sentence(self, alpha: float) -> str:
        """What is wrong, and the bounds of chance at a false-alarm probability of alpha."""
        low, high = binomial_bounds(self.total, self.probability, alpha)
        bounds = f"{low} to {high} are within chance at a probability of {self.probability:.4g}"
        return f"{self.found} of {self.total} {self.trials} {self.what}, where {bounds}"


def beyond_chance(counts: Sequence[Count], total: float) -> Iterator[str]:
    """Sentences for the counts that are no chance; `total` is the probability of a false alarm, in all.

    Example:
        >>> list(beyond_chance([Count("tokens", "are chosen", 150, 1000, 0.15), Count("tokens", "are kept", 9, 100, 0.1)], 1e-6))
        []
        >>> list(beyond_chance([Count("tokens", "are chosen", 300, 1000, 0.15)], 1e-6))
        ['300 of 1000 tokens are chosen, where 97 to 208 are within chance at a probability of 0.15']
    """
    alpha = share(len(counts), total)
    wrong = (c for c in counts if not is_binomial(c.found, c.total, c.probability, alpha))
    return (count.sentence(alpha) for count in wrong)


def wrong_rows(examples: Examples, wrong: Flags, what: str) -> Iterator[str]:
    """A sentence where any row (R,), or any of its positions (R, S), is wrong: how many rows are, and the first of them."""
    rows = np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))
    if rows.size:
        yield f"in {rows.size} of {len(examples.ids)} rows {what}; the first is row {rows[0]}: {rendered(examples, rows[0])}"


def rendered(examples: Examples, row: int) -> str:
    """The tokens of a row as it is shown, what is too long left out in its middle."""
    vocabulary = examples.corpus.given.vocabulary
    pieces = [vocabulary[i] for i in examples.ids[row]]
    return " ".join(pieces if len(pieces) <= 2 * _SHOWN else [*pieces[:_SHOWN], "…", *pieces[-_SHOWN:]])
