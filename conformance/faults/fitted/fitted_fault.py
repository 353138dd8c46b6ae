"""The definition of a fitted fault: a faulty step with numbers that are fitted to the candidate's array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from conformance.faults.hints import HINTS
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Network, Step

TINY = float(np.finfo(np.float64).tiny)
LEAST_ROWS = 3  # The least number of different rows from which one number per feature can be estimated.
_STEPS = 24  # A limit of the time only: a fit that has not converged leaves a residual that the judge does not accept.
_ROWS_AT_FIRST = 256  # A limit of the time only: the fit to all rows starts at the result of the fit to some of them.
_EPS = float(np.finfo(np.float64).eps)
_NUDGE = _EPS ** (1 / 3)  # balances truncation and rounding of a central difference
MOST_ROWS = 64  # A limit of work: the most rows on which variants are compared; what is found is judged on all.


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
        return sqrt(2.0 * (self.threshold**2 + 2.0 * log(max(int(self.judged.sum()), 1))))

    def largest_mean_square(self, rows: int, tests: int = 1) -> float:
        """Return the bound, in units of `allowed`², that the mean square over `rows` independent rows exceeds by chance only.

        With x = ln(tests / `chance`), each of `tests` means is above 1 + 2 √(x/ν) + 2 x/ν with probability at most e^(−x) (Laurent
        and Massart 2000, lemma 1). Its proof uses no more of χ²_ν/ν than the moment generating function, which bounds that of
        roundings as well (`numerics.thresholds.rms_threshold`).
        """
        x = log(max(tests, 1) / self.chance)
        return 1.0 + 2.0 * sqrt(x / max(rows, 1)) + 2.0 * x / max(rows, 1)


@dataclass(frozen=True)
class Fitted:
    """A fault that is found by fitting.

    Attributes:
        name, kinds, sentence, source, cause, only, equation, fix: as for `Fault`.
        fit: function from a correct step and the candidate's data to the fitted step, or to None if there is no evidence for the
            fault.
        unexposed_parents: whether the fault can be fitted where the step's parents are not exposed.
        is_largest_error: whether the reported number is the largest error on these inputs, which differs from place to place.
        per_token: whether numbers are fitted for each token; such a fault is fitted only where no fault of the catalogue explains
            the array under any arithmetic.
        of_one_number: whether it fits a single number, with its standard deviation.
        estimates: what is fitted, for reports; it precedes the numbers that `fit` reports, and is needed if it reports none.
        is_description: whether the fault only describes the result: it keeps the step's equation, and fits as many numbers as the
            operand has that is wrong (parameters, ids, positions, a mask, sums over a row). Any wrong value of that operand has
            such a fit, whatever code made it. A name states the operation that the code executes instead, and fits only its
            settings, of which there are fewer: a factor, a size, which columns are zero, an order.
    """

    name: str
    kinds: frozenset[str]
    sentence: str
    source: str
    fit: Callable[[Step, FitData], Fit | None]
    cause: str = ""
    unexposed_parents: bool = False
    is_largest_error: bool = False
    per_token: bool = False
    of_one_number: bool = False
    equation: str = ""
    fix: str = HINTS["*"].repair
    only: tuple[str, ...] = ("",)
    estimates: str = ""
    is_description: bool = False

    def is_possible_at(self, kind: str, name: str) -> bool:
        """Return whether the fault can be fitted at an activation of this kind and name."""
        return kind in self.kinds and name.endswith(self.only)


def relative_error(allowed: Array, results: Array) -> float:
    """Return the median of the allowed errors relative to the results."""
    return float(np.median(allowed / np.maximum(np.abs(results), TINY)))


def nearest_fit(step: Step, data: FitData, tried: Sequence[tuple[float, Step]], parameter: str) -> Fit | None:
    """Return the fit of the nearest step, of (value of the parameter, step); None if none is nearer than the correct step."""
    if not tried:
        return None
    value, faulty = min(tried, key=lambda pair: data.distance(pair[1].value))
    return Fit(faulty, 1, parameter, value) if data.distance(faulty.value) < data.distance(step.value) else None


def nearest_slices(right: Array, found: Array) -> Ids:
    """Return for each row of `found`, (M, n), the index of the nearest row of `right`, (N, n); of equal rows the first."""
    return as_array(((right**2).sum(-1) - 2.0 * found @ right.T).argmin(-1), np.int64)


def one_number(
    data: FitData, x: Array, form: Callable[[Array, float], Array], starts: Sequence[float]
) -> tuple[float, float] | None:
    """Return the positive number c that brings form(x, c) nearest to the array, and its standard deviation; None without one.

    It is found by Gauss-Newton steps in ln c from the nearest start, each limited to a factor of √e. It has converged when a step
    changes it by so little that its deviation does not show it. Near the solution each step squares the error (Nocedal and Wright
    2006, section 10.3).

    Args:
        data: the candidate's data.
        x: the operand, whose rows, (…, n), are those of the array.
        form: the function of some rows of the operand and of the number.
        starts: the numbers from which it is searched.
    """
    if not data.is_finite:
        return None
    weight = np.where(data.judged, 1.0 / data.allowed, 0.0)
    rows, actual, weight = (a.reshape(-1, a.shape[-1]) for a in (x, data.actual, weight))
    some = np.s_[:: max(len(rows) // _ROWS_AT_FIRST, 1)]

    def left(c: float, part: slice) -> float:
        return float(np.square(weight[part] * (actual[part] - form(rows[part], c))).sum())

    c, deviation = min(starts, key=lambda c: left(c, some)), 0.0
    for part in (some, np.s_[:]):
        for _ in range(_STEPS):
            more, less = (form(rows[part], c * (1.0 + sign * _NUDGE)) for sign in (1.0, -1.0))
            slope = weight[part] * (more - less) / (2.0 * _NUDGE)
            energy = float(np.vdot(slope, slope))
            if not energy > 0.0:
                return None
            moved = float(np.vdot(slope, weight[part] * (actual[part] - form(rows[part], c)))) / energy
            c, deviation = c * exp(min(max(moved, -0.5), 0.5)), energy**-0.5
            if abs(moved) <= max(_EPS, sqrt(_EPS) * deviation):
                break
    return c, c * deviation
