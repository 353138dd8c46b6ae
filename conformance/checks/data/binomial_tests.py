"""Binomial tests of what a pipeline draws at random, and sentences that report rows that are wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.checks.data.examples import Examples
from conformance.numerics.formats import Mask
from conformance.numerics.thresholds import BinomialCount, sidak_share


@dataclass(frozen=True)
class DescribedCount(BinomialCount):
    """A count with its description.

    Attributes:
        trials: the trials as a plural noun, for example "tokens of the corpus".
        what: the success as a predicate, for example "are chosen".
    """

    trials: str
    what: str

    @classmethod
    def of(cls, trials: str, what: str, came_out: Any, probability: float) -> "DescribedCount":
        """Return the count of an array of trials, true where a trial is a success."""
        return cls(int(np.count_nonzero(came_out)), np.size(came_out), probability, trials, what)

    def sentence(self, alpha: float) -> str:
        """Return a sentence with the count and the bounds that chance keeps to at a false-alarm probability of alpha."""
        low, high = self.bounds(alpha)
        bounds = f"{low} to {high} are within chance at a probability of {self.probability:.4g}"
        return f"{self.found} of {self.total} {self.trials} {self.what}, where {bounds}"


def beyond_chance(rates: Sequence[DescribedCount], agreements: Sequence[DescribedCount], total: float) -> Iterator[str]:
    """Return an iterator over sentences for the counts that chance does not explain.

    The probability that two draws agree is known only if the rates are right, so agreements are reported only if no rate is wrong.
    The exception is pairs that all agree: they are repetitions of one draw, which invalidates the tests of the rates, and are
    reported instead of the rates.

    Args:
        rates: counts of single draws.
        agreements: counts of pairs of draws that agree.
        total: the false-alarm probability of all counts together.

    Example:
        >>> right, wrong = (Count(n, 1000, 0.15, "tokens", "are chosen") for n in (150, 300))
        >>> pairs = Count(400, 500, 0.745, "pairs", "agree")
        >>> list(beyond_chance([right], [pairs], 1e-6))
        []
        >>> list(beyond_chance([wrong], [pairs], 1e-6))
        ['300 of 1000 tokens are chosen, where 96 to 209 are within chance at a probability of 0.15']
    """
    alpha = sidak_share(len(rates) + len(agreements), total)
    wrong, alike = ([count for count in counts if not count.is_chance(alpha)] for counts in (rates, agreements))
    is_idle = any(count.found in (0, count.total) for count in wrong)  # if an event never or always happens, all pairs agree
    repeated = [] if is_idle else [count for count in alike if count.is_every]
    return (count.sentence(alpha) for count in repeated or wrong or alike)


def wrong_rows(examples: Examples, wrong: Mask, what: str) -> Iterator[str]:
    """Yield a sentence with the number of wrong rows and the first of them, if a row (R,) or a position (R, S) is wrong."""
    rows = np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))
    if rows.size:
        shown = " ".join(examples.corpus.given.vocabulary[i] for i in examples.ids[rows[0]])
        yield f"in {rows.size} of {len(examples.ids)} rows {what}; the first is row {rows[0]}: {shown}"
