"""Thresholds, each derived from a false-alarm probability alone.

Under the model, an error is a sum of independent roundings, each uniform on an interval around zero. A uniform variable is strictly
sub-Gaussian: E exp(λe) ≤ exp(λ²σ²/2) with its own variance σ² (Arbel et al. 2020, *On strict sub-Gaussianity*, section 3), and
so are sums of independent ones, in any linear combination. The bounds below hold for strictly sub-Gaussian errors, not only for
normal ones, and none of them assumes that the elements of a row are independent; that of the RMS assumes rows of equal size.

If the false-alarm probability changes, these change with it, by hand:

- `SEPARABLE_Z` below, and `judge.search.problem.Problem.rms_limit`: both assume that no threshold is above 7.5;
- `checks.learning.EVALUATED`, the number of batches for which ln(1/α)/R is small;
- the examples of limits in `glossary.terms_of_judgement` and `report.run.run_environment` (about 8 σ), and the README's numbers;
- the results of the benchmarks, which have to be measured again.
"""

import math
from dataclasses import dataclass

from scipy.special import bdtr, bdtrc, lambertw

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
    def of(cls, rows: int, count: int, tests: int, total: float) -> "Limits":
        """Return the limits for `tests` statistics that share a false-alarm probability.

        Args:
            rows: number of independent rows.
            count: number of elements.
            tests: number of statistics.
            total: their total false-alarm probability.
        """
        alpha = sidak_share(tests, total)
        return cls(rms_threshold(rows, alpha), max_threshold(count, alpha), projection_threshold(alpha))


def sidak_share(tests: int, total: float = FALSE_ALARM) -> float:
    """Return the Šidák share α = 1 − (1 − total)^(1/tests) of each of `tests` tests (Šidák 1967)."""
    return -math.expm1(math.log1p(-total) / max(tests, 1))


def rms_threshold(rows: int, alpha: float) -> float:
    """Return the largest RMS of errors in sigma, pooled over `rows` independent rows, at false-alarm probability alpha.

    A strictly sub-Gaussian e has E exp(λ e²/σ²) ≤ (1 − 2λ)^(-1/2). The mean of such squares over a row has no larger moment
    generating function, even if they are dependent (Jensen), so the mean over ν rows obeys the Chernoff bound of χ²_ν/ν:
    P(mean > t) ≤ exp(−ν/2 · (t − 1 − ln t)). With s = t − 1 − ln t at alpha, t = −W₋₁(−e^(−1−s)) (Lambert's function); the root
    of t is returned.

    The rows are taken as equally long and as drawn equally often. Where their shares w of the elements differ, the bound is proven
    only for ν = 1/max w; this matters for errors that are shared by a whole row, which are a part of all.
    """
    s = 2.0 * math.log(1.0 / alpha) / max(rows, 1)
    return math.sqrt(-lambertw(-math.exp(-1.0 - s), -1).real)


def smallest_rms(rows: int, alpha: float) -> float:
    """Return the smallest RMS of normal errors in sigma, pooled over `rows` independent rows, at false-alarm probability alpha.

    The mean of the squares of ν independent normal errors has P(mean < t) ≤ exp(−ν/2 · (t − 1 − ln t)) for t < 1 as well. With s as
    in `rms_threshold`, t = −W₀(−e^(−1−s)); the root of t is returned. Errors that are sub-Gaussian may be smaller.
    """
    s = 2.0 * math.log(1.0 / alpha) / max(rows, 1)
    return math.sqrt(max(-lambertw(-math.exp(-1.0 - s)).real, 0.0))


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
