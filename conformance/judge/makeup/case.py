"""A failing step's residual, how a model of what was made is tried on it, and what is found.

A model explains what was made when what remains passes the same limits that a correct candidate must, with degrees of freedom in
hand: with N judged elements, p fitted numbers, ν = N − p, and R the residual's RMS before the fit,

    Σ e² / ν ≤ limit²,   max |e| ≤ limit,   P(χ²_ν ≤ ν limit² / R²) ≤ FALSE_ALARM

where e is in sigma, the deterministic bound taken off. The last line is the chance that a model which has nothing to do with the
residual, and so leaves R in every direction that it does not fit, passes all the same.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import stats

from conformance.judge.selection import Mask
from conformance.judge.statistics import FALSE_ALARM
from conformance.numerics.formats import Array
from conformance.oracle import Step

MOST_ELEMENTS = 2**20  # of one fit; rows beyond are left out evenly, so that a dozen arrays of this size stay near 100 MB
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Number:
    """A fitted number with its standard deviation."""

    name: str
    value: float
    deviation: float


@dataclass(frozen=True)
class Finding:
    """One thing that the residual may be made of.

    Attributes:
        kind: `scale`, `permutation`, …; for machines.
        sentence: for people.
        numbers: what was fitted, where that can be listed.
        explained: whether what remains passes as noise.
        remaining: RMS of what remains, in sigma, over the degrees of freedom.
        share: of the residual's energy that it accounts for, 0 to 1.
        freedom: how many numbers were free.
    """

    kind: str
    sentence: str
    numbers: tuple[Number, ...]
    explained: bool
    remaining: float
    share: float
    freedom: int


@dataclass(frozen=True)
class Noise:
    """Of each of the rows' elements: sigma, and the largest deterministic error."""

    sigma: Array
    bound: Array


@dataclass(frozen=True, eq=False)
class Case:
    """What was made, what is right, and how far they may be apart.

    Attributes:
        step: the oracle's, on the candidate's own parents.
        made: the candidate's array.
        sigma, bound: of each element.
        judged: which elements count.
        limits: of RMS and of the largest error, in sigma.
    """

    step: Step
    made: Array
    sigma: Array
    bound: Array
    judged: Mask
    limits: tuple[float, float]

    @cached_property
    def right(self) -> Array:
        """The step's value."""
        return np.asarray(self.step.value)

    @cached_property
    def residual(self) -> Array:
        """Made minus right; 0 where it is not judged."""
        return np.where(self.judged, self.made - self.right, 0.0)

    @cached_property
    def scaled(self) -> Array:
        """The residual in sigma once the bound is taken off, 0 where it is not judged."""
        return np.maximum(np.abs(self.residual) - self.bound, 0.0) / self.sigma

    @cached_property
    def _taken(self) -> npt.NDArray[np.int64]:
        """The rows (last axis) of which anything is judged, thinned evenly where they are many."""
        rows = np.flatnonzero(_as_rows(self.judged).any(1))
        most = max(MOST_ELEMENTS // max(self.width, 1), 1)
        return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(int)]

    @property
    def width(self) -> int:
        """Length of the last axis."""
        return int(self.made.shape[-1]) if self.made.ndim else 1

    def rows(self, array: Array) -> Array:
        """The rows that fits use, (R, F), of an array that broadcasts to the result's shape."""
        return np.asarray(_as_rows(np.broadcast_to(array, self.made.shape))[self._taken])

    def rows_of(self, inputs: Array) -> Array:
        """The same rows of inputs of another width."""
        return np.asarray(_as_rows(inputs)[self._taken])

    @cached_property
    def kept(self) -> Mask:
        """(R, F): which of their elements are judged."""
        return np.asarray(_as_rows(self.judged)[self._taken])

    @cached_property
    def made_rows(self) -> Array:
        """(R, F), what was made."""
        return self.rows(self.made)

    @cached_property
    def right_rows(self) -> Array:
        """(R, F), the right value."""
        return self.rows(self.right)

    @cached_property
    def noise(self) -> Noise:
        """That of the right value."""
        return Noise(self.rows(self.sigma), self.rows(self.bound))

    @cached_property
    def _relative(self) -> float:
        """Median of sigma / |right|: how precisely this step's results are computed."""
        counts = self.kept & (self.right_rows != 0.0)
        return float(np.median(self.noise.sigma[counts] / np.abs(self.right_rows[counts]))) if counts.any() else 0.0

    def noise_of(self, term: Array) -> Noise:
        """Of another result, (R, F): as precise as this step's, relative to its size or to its row's.

        The row's stands for cancellation: where a sum of large products is small, its error is not.
        """
        sizes = np.sqrt(term**2 + np.mean(term**2, axis=-1, keepdims=True))
        return Noise(np.maximum(self._relative * sizes, self.noise.sigma.min(initial=np.inf)), np.zeros_like(term))

    def noise_with(self, *terms: Array) -> Noise:
        """Of the right value with other terms added."""
        variance = self.noise.sigma**2
        for term in terms:
            variance = variance + self.noise_of(term).sigma ** 2
        return Noise(np.sqrt(variance), self.noise.bound)

    def scaled_noise(self, factor: Array | float) -> Noise:
        """Of the right value times a factor."""
        size = np.maximum(np.abs(factor), TINY)
        return Noise(np.maximum(self.noise.sigma * size, TINY), self.noise.bound * size)

    @property
    def count(self) -> int:
        """N, how many elements fits use."""
        return int(self.kept.sum())

    def tried(
        self, kind: str, sentence: str, model: Array, noise: Noise, freedom: int = 0, numbers: tuple[Number, ...] = ()
    ) -> Finding:
        """A finding of what remains when `model`, (R, F), is what was meant to be made."""
        degrees = self.count - freedom
        before, _ = self._energy(self.right_rows, noise)
        energy, largest = self._energy(model, noise)
        remaining = math.sqrt(energy / degrees) if degrees > 0 else math.inf
        passes = remaining <= self.limits[0] and largest <= self.limits[1]
        explained = passes and self._chance(degrees, before / max(self.count, 1)) <= FALSE_ALARM
        share = 1.0 - energy / before if before > 0.0 and math.isfinite(energy) else 0.0
        return Finding(kind, sentence, numbers, explained, remaining, max(share, 0.0), freedom)

    def _energy(self, model: Array, noise: Noise) -> tuple[float, float]:
        """Σ e² and max |e|."""
        with np.errstate(invalid="ignore", over="ignore"):
            left = np.maximum(np.abs(self.made_rows - model) - noise.bound, 0.0) / noise.sigma
        kept = np.where(np.isnan(left), np.inf, left)[self.kept]
        return float((kept**2).sum()), float(kept.max(initial=0.0))

    def _chance(self, degrees: int, square: float) -> float:
        """That an unrelated model passes; `square` is R²."""
        return float(stats.chi2.cdf(degrees * self.limits[0] ** 2 / square, degrees)) if square > 0.0 else 1.0

    def notable(self, finding: Finding) -> bool:
        """Whether the share could not be chance.

        Of a residual that has nothing to do with p terms, they account for a share that is Beta(p/2, (ν − p)/2) in ν independent
        directions. Elements are not independent directions: ν is taken as the lesser of rows and features.
        """
        directions, free = min(self.kept.any(1).sum(), self.kept.any(0).sum()), max(finding.freedom, 1)
        if directions <= free:
            return False
        return finding.share >= float(stats.beta.isf(FALSE_ALARM, free / 2.0, (directions - free) / 2.0))


def _as_rows(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
