"""The definition of a fitted fault: a faulty step with numbers that are fitted to the candidate's array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from conformance.faults.fault import Described
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Network, Step

TINY = float(np.finfo(np.float64).tiny)
LEAST_ROWS = 3  # The least number of different rows from which one number per feature can be estimated.


@dataclass(frozen=True)
class Fit:
    """A step that was fitted to the candidate's array.

    Attributes:
        step: the fitted step.
        free: the number of fitted numbers.
        parameter: name of the number that is reported, which precedes it in texts; empty if there is none.
        value: value of that number.
        deviation: standard deviation of `value`.
        simpler: fits of the same fault with fewer numbers, which replace this one if they explain the array; the first that does.
    """

    step: Step
    free: int
    parameter: str = ""
    value: float = 0.0
    deviation: float = 0.0
    simpler: tuple["Fit", ...] = ()


@dataclass(frozen=True, eq=False)
class FitData:
    """The data to which a step is fitted.

    Attributes:
        actual: the candidate's array.
        judged: which elements are judged.
        allowed: the magnitude √(σ² + b²) of the error that each element may have in a correct candidate.
        threshold: the threshold of |z| beyond which a deviation is significant.
        network: the network, for the parameters of other modules; None if there are none.
    """

    actual: Array
    judged: Mask
    allowed: Array
    threshold: float
    network: Network | None = None

    def distance(self, value: Array) -> float:
        """Return Σ (difference of the candidate's array and `value`)² over the judged elements, each in units of `allowed`."""
        return float((((self.actual - value) / self.allowed)[self.judged] ** 2).sum())

    @property
    def is_finite(self) -> bool:
        """Whether the candidate's judged elements are finite."""
        return bool(np.isfinite(self.actual[self.judged]).all())

    def rows(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the rows, (N, n), of each array, (..., n), that have a judged element."""
        kept = self.judged.any(-1).reshape(-1)
        return tuple(array.reshape(-1, array.shape[-1])[kept] for array in arrays)

    @property
    def chance(self) -> float:
        """The false-alarm probability of the threshold t: 2 exp(−t²/2)."""
        return 2.0 * exp(-(self.threshold**2) / 2.0)

    @property
    def largest(self) -> float:
        """The bound, in units of `allowed`, that no error of the N judged elements exceeds except with probability `chance`.

        In units of σ the bound is t_N = √(t² + 2 ln N), for which the probability per element is chance/N. The deterministic bound
        b is included by t_N σ + b ≤ √2 t_N √(σ² + b²).
        """
        return sqrt(2.0) * self.most_deviations(int(self.judged.sum()))

    def most_deviations(self, count: int) -> float:
        """Return the bound t_N, in deviations, of the largest of N = `count` normal errors."""
        return sqrt(self.threshold**2 + 2.0 * log(max(count, 1)))

    def largest_mean_square(self, rows: int, tests: int = 1) -> float:
        """Return the bound, in units of `allowed`², that the mean square over `rows` independent rows exceeds by chance only.

        With x = ln(tests / `chance`), each of `tests` means is above 1 + 2 √(x/ν) + 2 x/ν with probability at most e^(−x) (Laurent
        and Massart 2000, lemma 1). Its proof uses no more of χ²_ν/ν than the moment generating function, which bounds that of
        roundings as well (`numerics.thresholds.rms_threshold`).
        """
        x = log(max(tests, 1) / self.chance)
        return 1.0 + 2.0 * sqrt(x / max(rows, 1)) + 2.0 * x / max(rows, 1)


@dataclass(frozen=True)
class Fitted(Described):
    """A mistake that a fit detects.

    Attributes:
        name, kinds, sentence, only: as for `Fault`.
        fit: function from a correct step and the candidate's data to the fitted step, or to None if there is no evidence for the
            mistake.
        unexposed_parents: whether the mistake can be fitted where the step's parents are not exposed.
        is_largest_error: whether the reported number is the largest error on these inputs, which differs from place to place.
        per_token: whether numbers are fitted for each token or element; such a mistake is fitted only where none of the catalogue
            explains the array under any arithmetic.
        estimates: what is fitted, for reports; it precedes the numbers that `fit` reports, and is needed if it reports none.
        is_description: whether the fit only describes the result: it keeps the step's equation, and fits as many numbers as the
            operand has that is wrong (parameters, ids, positions, a mask, sums over a row). Any wrong value of that operand has
            such a fit, whatever code made it. A name states the operation that the code executes instead, and fits only its
            settings, of which there are fewer: a factor, a size, which columns are zero, an order.
        of_result: whether it describes the result itself, and no operand; it is fitted where nothing else explains the array.
    """

    name: str
    kinds: frozenset[str]
    sentence: str
    fit: Callable[[Step, FitData], Fit | None]
    only: tuple[str, ...] = ("",)
    unexposed_parents: bool = False
    is_largest_error: bool = False
    per_token: bool = False
    estimates: str = ""
    is_description: bool = False
    of_result: bool = False


def relative_error(allowed: Array, results: Array) -> float:
    """Return the median of the allowed errors relative to the results."""
    return float(np.median(allowed / np.maximum(np.abs(results), TINY)))


def nearest_fit(step: Step, data: FitData, tried: Sequence[tuple[float, Step]], parameter: str) -> Fit | None:
    """Return the fit of the nearest step, of (value of the parameter, step); None if none is nearer than the correct step."""
    if not tried:
        return None
    value, faulty = min(tried, key=lambda pair: data.distance(pair[1].value))
    return Fit(faulty, 1, parameter, value) if data.distance(faulty.value) < data.distance(step.value) else None


def nearest_slices(right: Array, actual: Array) -> Ids:
    """Return for each row of `actual`, (M, n), the index of the nearest row of `right`, (N, n); of equal rows the first."""
    return as_array(((right**2).sum(-1) - 2.0 * actual @ right.T).argmin(-1), np.int64)
