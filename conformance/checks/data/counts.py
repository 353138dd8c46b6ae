"""Counts of what a pipeline draws, each within exact binomial bounds, and rows that are wrong, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.checks.data.examples import Examples, Flags
from conformance.judge.statistics import binomial_bounds, is_binomial, share


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

    def is_chance(self, alpha: float) -> bool:
        """Whether so many, or so few, are no less likely than alpha."""
        return is_binomial(self.found, self.total, self.probability, alpha)

    def sentence(self, alpha: float) -> str:
        """What is wrong, and the bounds of chance at a false-alarm probability of alpha."""
        low, high = binomial_bounds(self.total, self.probability, alpha)
        bounds = f"{low} to {high} are within chance at a probability of {self.probability:.4g}"
        return f"{self.found} of {self.total} {self.trials} {self.what}, where {bounds}"


def beyond_chance(rates: Sequence[Count], agreements: Sequence[Count], total: float) -> Iterator[str]:
    """Sentences for the counts that are no chance; `total` is the probability of a false alarm, in all.

    Agreements are of pairs of draws, and as likely as they should be only at the right rates. Where all pairs agree they are one
    draw, and no trials of a rate: that comes first.

    Example:
        >>> right, wrong = Count("tokens", "are chosen", 150, 1000, 0.15), Count("tokens", "are chosen", 300, 1000, 0.15)
        >>> pairs = Count("pairs", "agree", 400, 500, 0.745)
        >>> list(beyond_chance([right], [pairs], 1e-6))
        []
        >>> list(beyond_chance([wrong], [pairs], 1e-6))
        ['300 of 1000 tokens are chosen, where 96 to 209 are within chance at a probability of 0.15']
    """
    alpha = share(len(rates) + len(agreements), total)
    wrong, alike = ([count for count in counts if not count.is_chance(alpha)] for counts in (rates, agreements))
    is_idle = any(count.found in (0, count.total) for count in wrong)  # all pairs of what never happens agree, or always
    repeated = [] if is_idle else [count for count in alike if count.found == count.total]
    return (count.sentence(alpha) for count in repeated or wrong or alike)


def wrong_rows(examples: Examples, wrong: Flags, what: str) -> Iterator[str]:
    """A sentence where any row (R,), or any of its positions (R, S), is wrong: how many rows are, and the first of them."""
    rows = np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))
    if rows.size:
        shown = " ".join(examples.corpus.given.vocabulary[i] for i in examples.ids[rows[0]])
        yield f"in {rows.size} of {len(examples.ids)} rows {what}; the first is row {rows[0]}: {shown}"
