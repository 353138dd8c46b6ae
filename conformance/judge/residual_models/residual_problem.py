"""A failing step's residual, and the test of a model of the candidate's array.

A model explains the candidate's array if the remaining error passes the limits for a correct candidate, corrected for the fitted
numbers. With N judged elements (in the last line only those that carry the residual), p fitted numbers, ν = N − p, and R the
residual's RMS before the fit,

    Σ e² / ν ≤ limit²,   max |e| ≤ limit,   P(χ²_ν ≤ ν limit² / R²) ≤ FALSE_ALARM

where e is in sigma, after subtracting the deterministic bound. The last line is the probability that a model unrelated to the
residual, which leaves R in every direction that it does not fit, passes nevertheless.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, chdtr

from conformance.judge.residual_models.step_terms import StepTerm, step_terms
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import FALSE_ALARM, ErrorLimits
from conformance.oracle import Step

MOST_ELEMENTS = 2**18  # elements in one fit, so that it takes milliseconds; larger arrays are thinned evenly
LEAST_COLUMNS = 256  # features that thinning keeps, so that enough rows remain to fit a linear map of a base network
TINY = 2.0**-200  # smallest sigma for which fourth powers of errors in sigma remain finite


Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FittedNumber:
    """A fitted number with its standard deviation."""

    name: str
    value: float
    deviation: float


@dataclass(frozen=True)
class ResidualFinding:
    """A possible component of the residual.

    Attributes:
        kind: `scale`, `permutation`, …; for programs.
        sentence: description for readers.
        numbers: the fitted numbers, if they can be listed.
        explained: whether the remaining error passes as noise; for a large array, in the rows and features that fits use.
        remaining: RMS of the remaining error, in sigma, over the degrees of freedom.
        share: fraction of the residual's energy that the model accounts for, 0 to 1.
        freedom: number of fitted numbers.
    """

    kind: str
    sentence: str
    numbers: tuple[FittedNumber, ...]
    explained: bool
    remaining: float
    share: float
    freedom: int


@dataclass(frozen=True)
class ElementNoise:
    """Noise of the elements that fits use, (R, F): sigma, and the largest deterministic error."""

    sigma: Array
    bound: Array


@dataclass(frozen=True, eq=False)
class ResidualProblem:
    """The actual and the expected value of a step, and the difference allowed between them.

    Attributes:
        step: the oracle's step, on the candidate's own parents.
        actual: the candidate's array.
        sigma, bound: random and deterministic error of each element.
        judged: mask of the elements that count.
        limits: largest RMS and largest error, in sigma.
    """

    step: Step
    actual: Array
    sigma: Array
    bound: Array
    judged: Mask
    limits: ErrorLimits

    @cached_property
    def expected(self) -> Array:
        """The value that the oracle's step computes."""
        return as_array(self.step.value)

    @cached_property
    def residual(self) -> Array:
        """Actual minus expected value; 0 where not judged."""
        return np.where(self.judged, self.actual - self.expected, 0.0)

    @cached_property
    def scaled(self) -> Array:
        """The absolute residual in sigma after subtracting the bound; 0 where not judged."""
        return np.maximum(np.abs(self.residual) - self.bound, 0.0) / self.sigma

    @cached_property
    def taken(self) -> Places:
        """Indices of the rows that fits use, (R,): rows (all axes but the last, flattened) with judged elements, thinned evenly."""
        rows = np.flatnonzero(self.judged.any(-1) if self.judged.ndim else self.judged)
        return rows[_thinned(len(rows), max(MOST_ELEMENTS // len(self.columns), 1))]

    @cached_property
    def columns(self) -> Places:
        """Indices along the last axis that fits use, (F,): those with judged elements, thinned first, as fits need rows more."""
        if not self.judged.ndim:
            return np.zeros(1, np.int64)
        rows, used = int(self.judged.any(-1).sum()), np.flatnonzero(self.judged.any(tuple(range(self.judged.ndim - 1))))
        return used[_thinned(len(used), max(MOST_ELEMENTS // max(rows, 1), LEAST_COLUMNS))]

    @cached_property
    def coordinates(self) -> tuple[Places, ...]:
        """Coordinates of the elements that fits use: for each axis (R, 1), for the last (1, F)."""
        if not self.actual.ndim:
            return ()
        leading = np.unravel_index(self.taken, self.actual.shape[:-1]) if self.actual.ndim > 1 else ()
        return (*(c[:, None] for c in leading), np.broadcast_to(self.columns, (len(self.taken), len(self.columns))))

    def rows(self, array: npt.NDArray[Any]) -> Array:
        """Return the elements that fits use, (R, F), of an array that broadcasts to the result's shape."""
        return self.at(array, self.coordinates)

    def at(self, array: npt.NDArray[Any], coordinates: tuple[Places, ...]) -> Array:
        """Return the elements at the given coordinates of an array that broadcasts to the result's shape."""
        found = as_array(np.broadcast_to(array, self.actual.shape)[coordinates])
        return found if found.ndim else found.reshape(1, 1)

    def rows_of(self, inputs: Array) -> Array:
        """Return the rows that fits use, (R, I), of inputs of any width I."""
        return inputs.reshape(-1, inputs.shape[-1])[self.taken]

    @cached_property
    def step_terms(self) -> tuple[tuple[StepTerm, Array], ...]:
        """The step's terms with their elements (R, F); terms that repeat another or are zero are omitted."""
        found: list[tuple[StepTerm, Array]] = []
        for term in step_terms(self.step):
            fits = term.is_constant or term.value.shape == self.actual.shape
            if fits and np.any(values := self.rows(term.value)) and not any(np.array_equal(values, other) for _, other in found):
                found.append((term, values))
        return tuple(found)

    @cached_property
    def kept(self) -> Mask:
        """Mask of the judged elements among those that fits use, (R, F)."""
        return as_array(self.rows(self.judged), np.bool_)

    @cached_property
    def actual_rows(self) -> Array:
        """The actual value of the elements that fits use, (R, F)."""
        return self.rows(self.actual)

    @cached_property
    def expected_rows(self) -> Array:
        """The expected value of the elements that fits use, (R, F)."""
        return self.rows(self.expected)

    @cached_property
    def noise(self) -> ElementNoise:
        """The noise of the expected value."""
        return ElementNoise(self.rows(self.sigma), self.rows(self.bound))

    @cached_property
    def _relative(self) -> float:
        """Median of sigma / |expected|: the relative precision of the step's results."""
        counts = self.kept & (self.expected_rows != 0.0)
        return float(np.median(self.noise.sigma[counts] / np.abs(self.expected_rows[counts]))) if counts.any() else 0.0

    def noise_of(self, term: Array) -> ElementNoise:
        """Return the noise of another result, (R, F), with this step's precision relative to the element's or its row's size.

        The row's size accounts for cancellation: a sum of large products may be small, but its error is not.
        """
        sizes = np.sqrt(term**2 + np.mean(term**2, axis=-1, keepdims=True))
        return ElementNoise(np.maximum(self._relative * sizes, self.noise.sigma.min(initial=np.inf)), np.zeros_like(term))

    def noise_with(self, *terms: Array) -> ElementNoise:
        """Return the noise of the expected value with other terms added."""
        variance = self.noise.sigma**2
        for term in terms:
            variance = variance + self.noise_of(term).sigma ** 2
        return ElementNoise(np.sqrt(variance), self.noise.bound)

    @cached_property
    def root_weights(self) -> Array:
        """Square roots of the least-squares weights, (R, F): 1/σ, and 0 where not judged.

        σ² is the sum of the variances of the expected and the actual value's noise. The latter is included because an expected
        value near 0 by chance has a small sigma, which would give a single element all the weight.
        """
        variance = self.noise.sigma**2 + self.noise.bound**2 + self.noise_of(self.actual_rows).sigma ** 2
        return np.where(self.kept, 1.0 / np.sqrt(variance), 0.0)

    def scaled_noise(self, factor: Array | float) -> ElementNoise:
        """Return the noise of the expected value times a factor."""
        size = np.maximum(np.abs(factor), TINY)
        return ElementNoise(np.maximum(self.noise.sigma * size, TINY), self.noise.bound * size)

    @property
    def count(self) -> int:
        """N, the number of elements that fits use."""
        return int(self.kept.sum())

    def finding_of(
        self, kind: str, sentence: str, model: Array, noise: ElementNoise, freedom: int = 0, numbers: tuple[FittedNumber, ...] = ()
    ) -> ResidualFinding:
        """Return the finding for `model`, (R, F): the remaining error if `model` is the value that the candidate computed."""
        degrees, left = self.count - freedom, self._left(model, noise)
        remaining = math.sqrt(float((left**2).sum()) / degrees) if degrees > 0 else math.inf
        passes = remaining <= self.limits.rms and float(left.max(initial=0.0)) <= self.limits.max
        explained = passes and self._chance(self._left(self.expected_rows, noise), freedom) <= FALSE_ALARM
        return ResidualFinding(kind, sentence, numbers, explained, remaining, self._share(model), freedom)

    def _share(self, model: Array) -> float:
        """Return the fraction of the residual's energy that a model accounts for, in the weights of the fits."""
        before, after = (self.root_weights * np.where(self.kept, self.actual_rows - m, 0.0) for m in (self.expected_rows, model))
        square = float((before**2).sum())
        return max(1.0 - float((after**2).sum()) / square, 0.0) if square > 0.0 and np.isfinite(after).all() else 0.0

    def _left(self, model: Array, noise: ElementNoise) -> Array:
        """Return the remaining error e of each judged element, in sigma."""
        with np.errstate(invalid="ignore", over="ignore"):
            left = np.maximum(np.abs(self.actual_rows - model) - noise.bound, 0.0) / noise.sigma
        return as_array(np.where(np.isnan(left), np.inf, left)[self.kept])

    def _chance(self, before: Array, freedom: int) -> float:
        """Return the probability that an unrelated model passes, given the error e before the fit."""
        carrying = self._carrying(before)
        degrees, square = carrying - freedom, float((before**2).sum()) / max(carrying, 1.0)
        return float(chdtr(degrees, degrees * self.limits.rms**2 / square)) if degrees > 0.0 and square > 0.0 else 1.0

    def _carrying(self, e: Array) -> float:
        """Return the number of elements that carry e: those beyond the limit, or 3 (Σe²)²/Σe⁴ (N for normal e) if that is more."""
        e = np.abs(e)
        beyond, e = float((e > self.limits.max).sum()), e / max(float(e.max(initial=0.0)), TINY)
        fourth = float((e**4).sum())
        return min(float(e.size), max(beyond, 3.0 * float((e**2).sum()) ** 2 / fourth if fourth else 0.0))

    def notable(self, finding: ResidualFinding) -> bool:
        """Return whether the finding's share is too large for chance.

        If a residual is unrelated to p terms, they account for a share with distribution Beta(p/2, (ν − p)/2) in ν independent
        directions. Elements are not independent directions: ν is the smallest of the numbers of rows, features and elements that
        carry the residual.
        """
        carrying = self._carrying((self.root_weights * (self.actual_rows - self.expected_rows))[self.kept])
        directions, free = min(self.kept.any(1).sum(), self.kept.any(0).sum(), carrying), max(finding.freedom, 1)
        if directions <= free:
            return False
        return finding.share >= 1.0 - float(betaincinv((directions - free) / 2.0, free / 2.0, FALSE_ALARM))


def _thinned(count: int, most: int) -> Places:
    """Return at most `most` of the numbers below `count`, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
