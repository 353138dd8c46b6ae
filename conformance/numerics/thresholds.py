"""Thresholds, each derived from a false-alarm probability alone.

Under the model, an error is a sum of independent roundings, each uniform on an interval around zero. A uniform variable is strictly
sub-Gaussian: E exp(λe) ≤ exp(λ²σ²/2) with its own variance σ² (Arbel et al. 2020, *On strict sub-Gaussianity*, section 3), and
so are sums of independent ones, in any linear combination. The bounds below hold for strictly sub-Gaussian errors, not only for
normal ones, and none of them assumes that the elements of a row are independent.

If the false-alarm probability changes, these change with it, by hand:

- `SEPARABLE_Z` below, and `judge.search.problem.Problem.rms_limit`: both assume that no threshold is above 7.5;
- `checks.learning.EVALUATED`, the number of batches for which ln(1/α)/R is small;
- the examples of limits in `glossary/terms.md`, and the README's numbers;
- the results of the benchmarks, which have to be measured again.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, lambertw

from conformance.numerics.formats import Array

FALSE_ALARM = 1e-6  # of one run, under the model; every threshold below is derived from it
FALSE_ALARM_TEXT = f"{FALSE_ALARM:.0e}".replace("e-0", "e-")  # as texts write it

LARGEST_DEVIATION = 9.0  # in standard deviations: of 10^12 normal errors, one is larger with a probability of 2e-7

SEPARABLE_Z = 12.0  # The method's limit: at this expected z a fault is missed with a probability below that of a false alarm,
# because a threshold for 1e-6 over up to 10^7 tests is below 7.5 and 12 − 7.5 = 4.5 standard deviations remain (3e-6).


@dataclass(frozen=True)
class ErrorLimits:
    """The largest values that RMS and maximum of an error in sigma may take."""

    rms: float
    max: float


@dataclass(frozen=True)
class Limits(ErrorLimits):
    """The largest values that RMS, maximum and a filter's |z| may take."""

    filter: float

    @property
    def evidence_threshold(self) -> float:
        """`evidence_threshold` of a filter."""
        return evidence_threshold(self.filter)

    @classmethod
    def of(cls, rows: int | Array, count: int, tests: int, total: float) -> "Limits":
        """Return the limits for `tests` statistics that share a false-alarm probability.

        Args:
            rows: the independent rows, as for `rms_threshold`.
            count: number of elements.
            tests: number of statistics.
            total: their total false-alarm probability.
        """
        alpha = sidak_share(tests, total)
        return cls(rms_threshold(rows, alpha), max_threshold(count, alpha), projection_threshold(alpha))


def sidak_share(tests: int, total: float = FALSE_ALARM) -> float:
    """Return the Šidák share α = 1 − (1 − total)^(1/tests) of each of `tests` tests (Šidák 1967)."""
    return -math.expm1(math.log1p(-total) / max(tests, 1))


def rms_threshold(rows: int | Array, alpha: float) -> float:
    """Return the largest RMS of errors in sigma, pooled over independent rows, at false-alarm probability alpha.

    A strictly sub-Gaussian e has E exp(λ e²/σ²) ≤ (1 − 2λ)^(-1/2). The mean of such squares over a row has no larger moment
    generating function, even if they are dependent (Jensen). With w the rows' shares of the pooled sum, Σ w = 1, the mean over all
    rows therefore obeys P(mean > t) ≤ exp(−λt) Π (1 − 2λw)^(-1/2) for each λ (Chernoff), and at alpha

        t = min over λ of (ln 1/α − ½ Σ ln(1 − 2λw)) / λ

    For ν equal rows, the bound is that of χ²_ν/ν, exp(−ν/2 · (t − 1 − ln t)). With s = t − 1 − ln t at alpha, t = −W₋₁(−e^(−1−s))
    (Lambert's function). The root of t is returned.

    Args:
        rows: the number of rows, if they are equally long; else the length of each, or its expected sum of squares.
        alpha: the false-alarm probability.
    """
    shares, counts = _shares(rows)
    return _rms_threshold(tuple(shares), tuple(counts), math.log(1.0 / alpha))


@lru_cache  # the layers of a network have the same rows
def _rms_threshold(shares: tuple[float, ...], counts: tuple[float, ...], evidence: float) -> float:
    if len(shares) == 1:
        return math.sqrt(-lambertw(-math.exp(-1.0 - 2.0 * evidence / counts[0]), -1).real)
    # The minimum is where x g' = g, for g(x) = ln 1/α − ½ Σ ln(1 − x w / max w) and x = 2λ max w.
    relative, number = np.divide(shares, shares[-1]), np.array(counts)

    def excess(x: float) -> float:
        left = 1.0 - x * relative
        return float(number @ (x * relative / left + np.log(left))) / 2.0 - evidence

    x = _root(excess, 0.0, 1.0)
    return math.sqrt(2.0 * shares[-1] * (evidence - float(number @ np.log(1.0 - x * relative)) / 2.0) / x)


def smallest_rms(rows: int | Array, alpha: float) -> float:
    """Return the smallest RMS of normal errors in sigma, pooled over independent rows, at false-alarm probability alpha.

    As in `rms_threshold`, P(mean < t) ≤ exp(λt) Π (1 + 2λw)^(-1/2), and t is the largest value of (½ Σ ln(1 + 2λw) − ln 1/α) / λ.
    For ν equal rows, t = −W₀(−e^(−1−s)). The root of t is returned. Errors that are sub-Gaussian may be smaller.
    """
    shares, counts = _shares(rows)
    evidence = math.log(1.0 / alpha)
    if len(shares) == 1:
        return math.sqrt(max(-lambertw(-math.exp(-1.0 - 2.0 * evidence / counts[0])).real, 0.0))
    relative = shares / shares[-1]

    def excess(exponent: float) -> float:
        moved = math.exp(exponent) * relative
        return float(counts @ (np.log1p(moved) - moved / (1.0 + moved))) / 2.0 - evidence

    # Above, the term of the largest share alone exceeds the evidence: ln(1 + y) − 1 ≥ 2 ln 1/α.
    x = math.exp(_root(excess, math.log(sys.float_info.min), 2.0 * evidence + 2.0))
    return math.sqrt(max(2.0 * shares[-1] * (float(counts @ np.log1p(x * relative)) / 2.0 - evidence) / x, 0.0))


def _shares(rows: int | Array) -> tuple[Array, Array]:
    """Return the different shares of the rows in their sum, in ascending order, and how many rows have each."""
    if isinstance(rows, int):
        return np.ones(1), np.array([max(rows, 1.0)])
    sizes, counts = np.unique(rows[rows > 0.0], return_counts=True)
    if not len(sizes):
        return np.ones(1), np.ones(1)
    return sizes / float(counts @ sizes), counts.astype(np.float64)


def _root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function changes its sign, between two numbers, by bisection to the last bit."""
    while low < (middle := low + (high - low) / 2.0) < high:
        low, high = (middle, high) if increasing(middle) < 0.0 else (low, middle)
    return low


def max_threshold(count: int, alpha: float) -> float:
    """Return the largest of `count` errors in sigma: 2 · count · exp(−t²/2) = alpha (union bound; no independence needed)."""
    return math.sqrt(2.0 * math.log(2.0 * max(count, 1) / alpha))


def projection_threshold(alpha: float) -> float:
    """Return the largest |projection| on a fixed direction, in its own standard deviations: 2 exp(−t²/2) = alpha."""
    return math.sqrt(2.0 * math.log(2.0 / alpha))


def evidence_threshold(projection: float) -> float:
    """Return the log-likelihood ratio, in nats, that corresponds to the threshold of a projection: t²/2 = ln 2/α."""
    return projection**2 / 2.0


@dataclass(frozen=True)
class BinomialCount:
    """The number of successes in independent trials of equal probability.

    Attributes:
        found, total: the number of successes and of trials.
        probability: the probability of a success.
    """

    found: int
    total: int
    probability: float

    @property
    def is_every(self) -> bool:
        """Whether every trial succeeded."""
        return self.found == self.total

    def is_chance(self, alpha: float) -> bool:
        """Return whether the p-value is at least alpha: exact, two-sided by doubling the smaller tail."""
        few, many = bdtr(self.found, self.total, self.probability), bdtrc(self.found - 1, self.total, self.probability)
        return bool(2.0 * min(few, many) >= alpha)

    def bounds(self, alpha: float) -> tuple[int, int]:
        """Return the smallest and the largest number of successes that `is_chance` accepts."""
        from scipy.stats import binom  # slow to import

        return int(binom.ppf(alpha / 2.0, self.total, self.probability)), int(binom.isf(alpha / 2.0, self.total, self.probability))
