"""A failing step's residual, how a model of the candidate's array is tried on it, and what is found.

A model explains the candidate's array when what remains passes the same limits that a correct candidate must, with degrees of
freedom in hand: with N judged elements (in the last line only those that carry the residual), p fitted numbers, ν = N − p, and R
the residual's RMS before the fit,

    Σ e² / ν ≤ limit²,   max |e| ≤ limit,   P(χ²_ν ≤ ν limit² / R²) ≤ FALSE_ALARM

where e is in sigma, the deterministic bound taken off. The last line is the chance that a model which has nothing to do with the
residual, and so leaves R in every direction that it does not fit, passes all the same.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, chdtr

from conformance.judge.residual_models.ingredients import Ingredient, ingredients
from conformance.judge.selection import Mask
from conformance.judge.statistics import FALSE_ALARM
from conformance.numerics.formats import Array
from conformance.oracle import Step

MOST_ELEMENTS = 2**18  # of one fit, so that each takes milliseconds; more are thinned evenly
LEAST_COLUMNS = 256  # that thinning leaves of features, so that as many rows are left as a linear map of a base network needs
TINY = 2.0**-200  # the least sigma: fourth powers of errors in it are still finite


Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FittedNumber:
    """A fitted number with its standard deviation."""

    name: str
    value: float
    deviation: float


@dataclass(frozen=True)
class ResidualFinding:
    """One thing that the residual may be made of.

    Attributes:
        kind: `scale`, `permutation`, …; for machines.
        sentence: for people.
        numbers: what was fitted, where that can be listed.
        explained: whether what remains passes as noise; of a large array, in the rows and features that are looked at.
        remaining: RMS of what remains, in sigma, over the degrees of freedom.
        share: of the residual's energy that it accounts for, 0 to 1.
        freedom: how many numbers were free.
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
    """Of each of the rows' elements: sigma, and the largest deterministic error."""

    sigma: Array
    bound: Array


@dataclass(frozen=True, eq=False)
class ResidualProblem:
    """The actual and the expected value, and how far they may be apart.

    Attributes:
        step: the oracle's, on the candidate's own parents.
        actual: the candidate's array.
        sigma, bound: of each element.
        judged: which elements count.
        limits: of RMS and of the largest error, in sigma.
    """

    step: Step
    actual: Array
    sigma: Array
    bound: Array
    judged: Mask
    limits: tuple[float, float]

    @cached_property
    def expected(self) -> Array:
        """The step's value."""
        return np.asarray(self.step.value)

    @cached_property
    def residual(self) -> Array:
        """Made minus right; 0 where it is not judged."""
        return np.where(self.judged, self.actual - self.expected, 0.0)

    @cached_property
    def scaled(self) -> Array:
        """The residual in sigma once the bound is taken off, 0 where it is not judged."""
        return np.maximum(np.abs(self.residual) - self.bound, 0.0) / self.sigma

    @cached_property
    def taken(self) -> Places:
        """(R,): the rows, all axes but the last in one, of which anything is judged; thinned evenly where they are many."""
        rows = np.flatnonzero(self.judged.any(-1) if self.judged.ndim else self.judged)
        return rows[_thinned(len(rows), max(MOST_ELEMENTS // len(self.columns), 1))]

    @cached_property
    def columns(self) -> Places:
        """(F,): the places of the last axis where anything is judged; thinned before rows are, which fits need more."""
        if not self.judged.ndim:
            return np.zeros(1, np.int64)
        rows, used = int(self.judged.any(-1).sum()), np.flatnonzero(self.judged.any(tuple(range(self.judged.ndim - 1))))
        return used[_thinned(len(used), max(MOST_ELEMENTS // max(rows, 1), LEAST_COLUMNS))]

    @cached_property
    def coordinates(self) -> tuple[Places, ...]:
        """Where the elements that fits use stand: for each axis (R, 1), for the last (1, F)."""
        if not self.actual.ndim:
            return ()
        leading = np.unravel_index(self.taken, self.actual.shape[:-1]) if self.actual.ndim > 1 else ()
        return (*(c[:, None] for c in leading), np.broadcast_to(self.columns, (len(self.taken), len(self.columns))))

    def rows(self, array: npt.NDArray[Any]) -> Array:
        """The elements that fits use, (R, F), of an array that broadcasts to the result's shape."""
        return self.at(array, self.coordinates)

    def at(self, array: npt.NDArray[Any], coordinates: tuple[Places, ...]) -> Array:
        """Elements at other coordinates."""
        found = np.asarray(np.broadcast_to(array, self.actual.shape)[coordinates])
        return found if found.ndim else found.reshape(1, 1)

    def rows_of(self, inputs: Array) -> Array:
        """(R, I): the same rows of inputs of another width, whole."""
        return inputs.reshape(-1, inputs.shape[-1])[self.taken]

    @cached_property
    def ingredients(self) -> tuple[tuple[Ingredient, Array], ...]:
        """Those of the step and their elements (R, F): none twice, none that is zero."""
        found: list[tuple[Ingredient, Array]] = []
        for term in ingredients(self.step):
            fits = term.is_constant or term.value.shape == self.actual.shape
            if fits and np.any(values := self.rows(term.value)) and not any(np.array_equal(values, other) for _, other in found):
                found.append((term, values))
        return tuple(found)

    @cached_property
    def kept(self) -> Mask:
        """(R, F): which of their elements are judged."""
        return np.asarray(self.rows(self.judged), np.bool_)

    @cached_property
    def actual_rows(self) -> Array:
        """(R, F), the actual value."""
        return self.rows(self.actual)

    @cached_property
    def expected_rows(self) -> Array:
        """(R, F), the right value."""
        return self.rows(self.expected)

    @cached_property
    def noise(self) -> ElementNoise:
        """That of the right value."""
        return ElementNoise(self.rows(self.sigma), self.rows(self.bound))

    @cached_property
    def _relative(self) -> float:
        """Median of sigma / |right|: how precisely this step's results are computed."""
        counts = self.kept & (self.expected_rows != 0.0)
        return float(np.median(self.noise.sigma[counts] / np.abs(self.expected_rows[counts]))) if counts.any() else 0.0

    def noise_of(self, term: Array) -> ElementNoise:
        """Of another result, (R, F): as precise as this step's, relative to its size or to its row's.

        The row's stands for cancellation: where a sum of large products is small, its error is not.
        """
        sizes = np.sqrt(term**2 + np.mean(term**2, axis=-1, keepdims=True))
        return ElementNoise(np.maximum(self._relative * sizes, self.noise.sigma.min(initial=np.inf)), np.zeros_like(term))

    def noise_with(self, *terms: Array) -> ElementNoise:
        """Of the right value with other terms added."""
        variance = self.noise.sigma**2
        for term in terms:
            variance = variance + self.noise_of(term).sigma ** 2
        return ElementNoise(np.sqrt(variance), self.noise.bound)

    @cached_property
    def root_weights(self) -> Array:
        """(R, F): √ of the weights of least squares, 1/σ, σ² the variances of the right value's noise and made's; 0 if not judged.

        Where the right value is near 0 by chance, its own sigma would give a single element all the weight.
        """
        variance = self.noise.sigma**2 + self.noise.bound**2 + self.noise_of(self.actual_rows).sigma ** 2
        return np.where(self.kept, 1.0 / np.sqrt(variance), 0.0)

    def scaled_noise(self, factor: Array | float) -> ElementNoise:
        """Of the right value times a factor."""
        size = np.maximum(np.abs(factor), TINY)
        return ElementNoise(np.maximum(self.noise.sigma * size, TINY), self.noise.bound * size)

    @property
    def count(self) -> int:
        """N, how many elements fits use."""
        return int(self.kept.sum())

    def tried(
        self, kind: str, sentence: str, model: Array, noise: ElementNoise, freedom: int = 0, numbers: tuple[FittedNumber, ...] = ()
    ) -> ResidualFinding:
        """A finding of what remains when `model`, (R, F), is the value that was meant."""
        degrees, left = self.count - freedom, self._left(model, noise)
        remaining = math.sqrt(float((left**2).sum()) / degrees) if degrees > 0 else math.inf
        passes = remaining <= self.limits[0] and float(left.max(initial=0.0)) <= self.limits[1]
        explained = passes and self._chance(self._left(self.expected_rows, noise), freedom) <= FALSE_ALARM
        return ResidualFinding(kind, sentence, numbers, explained, remaining, self._share(model), freedom)

    def _share(self, model: Array) -> float:
        """Of the residual's energy, in the weights of the fits: the same measure for every model."""
        before, after = (self.root_weights * np.where(self.kept, self.actual_rows - m, 0.0) for m in (self.expected_rows, model))
        square = float((before**2).sum())
        return max(1.0 - float((after**2).sum()) / square, 0.0) if square > 0.0 and np.isfinite(after).all() else 0.0

    def _left(self, model: Array, noise: ElementNoise) -> Array:
        """e of each judged element."""
        with np.errstate(invalid="ignore", over="ignore"):
            left = np.maximum(np.abs(self.actual_rows - model) - noise.bound, 0.0) / noise.sigma
        return np.asarray(np.where(np.isnan(left), np.inf, left)[self.kept])

    def _chance(self, before: Array, freedom: int) -> float:
        """That an unrelated model passes, given e before the fit."""
        carrying = self._carrying(before)
        degrees, square = carrying - freedom, float((before**2).sum()) / max(carrying, 1.0)
        return float(chdtr(degrees, degrees * self.limits[0] ** 2 / square)) if degrees > 0.0 and square > 0.0 else 1.0

    def _carrying(self, e: Array) -> float:
        """N, or where few carry the residual, how many: those beyond the largest error, or 3 (Σe²)²/Σe⁴, N of a normal e."""
        e = np.abs(e)
        beyond, e = float((e > self.limits[1]).sum()), e / max(float(e.max(initial=0.0)), TINY)
        fourth = float((e**4).sum())
        return min(float(e.size), max(beyond, 3.0 * float((e**2).sum()) ** 2 / fourth if fourth else 0.0))

    def notable(self, finding: ResidualFinding) -> bool:
        """Whether the share could not be chance.

        Of a residual that has nothing to do with p terms, they account for a share that is Beta(p/2, (ν − p)/2) in ν independent
        directions. Elements are not independent directions: ν is taken as the least of rows, features and elements that carry it.
        """
        carrying = self._carrying((self.root_weights * (self.actual_rows - self.expected_rows))[self.kept])
        directions, free = min(self.kept.any(1).sum(), self.kept.any(0).sum(), carrying), max(finding.freedom, 1)
        if directions <= free:
            return False
        return finding.share >= 1.0 - float(betaincinv((directions - free) / 2.0, free / 2.0, FALSE_ALARM))


def _thinned(count: int, most: int) -> Places:
    """At most so many of the numbers below `count`, evenly."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
