"""Error statistics accumulated over blocks: RMS and maximum in sigma, largest difference and index, likelihood, histogram."""

from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.error_distribution import ZERO, Histogram, counts
from conformance.judge.evidence import Error
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import Noise
from conformance.numerics.formats import Array, Captured, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import ErrorLimits


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the judged elements of an error.

    Attributes:
        count: number of elements over which the mean is taken.
        squares: Σ e², with e in sigma.
        largest: the largest |e|.
        max_abs: the largest absolute difference.
        index: index of the largest absolute difference.
    """

    count: int
    squares: float
    largest: float
    max_abs: float
    index: tuple[int, ...]

    @classmethod
    def of(cls, scaled: Array, count: int, difference: Captured, first: int = 0) -> "ErrorSums":
        """Return the sums for one block.

        Args:
            scaled: errors in sigma, 0 at elements that are not judged.
            count: number of elements over which the mean is taken.
            difference: unscaled differences, 0 at elements that are not judged.
            first: batch row at which the block starts.
        """
        at, flat = _index_of_largest(difference), scaled.ravel()
        index = (at[0] + first, *at[1:]) if at else ()
        largest = float(max(flat.max(initial=0.0), -flat.min(initial=0.0)))
        return cls(count, float(np.dot(flat, flat)), largest, abs(float(difference[at])), index)

    def __add__(self, other: "ErrorSums") -> "ErrorSums":
        """Return the sums over the elements of both operands."""
        worse = self if self.max_abs >= other.max_abs else other
        largest = float(np.maximum(self.largest, other.largest))  # propagates NaN
        return replace(worse, count=self.count + other.count, squares=self.squares + other.squares, largest=largest)

    @property
    def exact(self) -> Error:
        """The error for an activation without sigma: the largest absolute difference and its index."""
        return Error(None, None, self.max_abs, self.index)

    @property
    def rms(self) -> float:
        """The root mean square of the error, in sigma."""
        return float(np.sqrt(self.squares / max(self.count, 1)))

    @property
    def error(self) -> Error:
        """The error as RMS, maximum, largest absolute difference and its index."""
        return Error(self.rms, self.largest, self.max_abs, self.index)

    def within(self, limits: ErrorLimits) -> bool:
        """Return whether RMS and maximum are within the limits."""
        return self.rms <= limits.rms and self.largest <= limits.max


def _index_of_largest(difference: Captured) -> tuple[int, ...]:
    flat = difference.ravel()
    highest, lowest = int(flat.argmax()), int(flat.argmin())
    number = lowest if -flat[lowest] > flat[highest] else highest
    return tuple(int(i) for i in np.unravel_index(number, difference.shape))


def in_sigma(residual: Array, noise: Noise) -> Array:
    """Return the signed residual in sigma, after subtracting the deterministic bound from its magnitude."""
    if not noise.is_bounded:
        return as_array(residual / noise.sigma)  # an array for a scalar residual too
    scaled = as_array(np.abs(residual))
    scaled -= noise.bound
    np.maximum(scaled, 0.0, out=scaled)
    scaled /= noise.sigma
    np.copysign(scaled, residual, out=scaled)
    return scaled


@dataclass(frozen=True)
class LocalSums:
    """Sums of a local residual under one hypothesis: its error, Σ (e²/2 + ln σ), and its histogram."""

    errors: ErrorSums
    nll: float
    counts: Histogram

    @classmethod
    def of(cls, residual: Array, noise: Noise, counted: Mask, first: int = 0) -> "LocalSums":
        """Return the sums for a block's residual.

        Args:
            residual: the residual.
            noise: the noise of the judged elements.
            counted: mask of the elements over which means are taken (`Block.counted`).
            first: batch row at which the block starts.
        """
        scaled, judged = zeroed(in_sigma(residual, noise), noise.judged), noise.judged
        count = int(np.count_nonzero(counted))
        errors = ErrorSums.of(scaled, count, zeroed(residual, judged), first)
        found = counts(scaled)
        found[ZERO] -= 0 if noise.all_judged else residual.size - int(judged.sum())
        logarithms = np.log(noise.sigma)
        total = logarithms.sum() if count == residual.size else np.sum(logarithms, where=counted)
        return cls(errors, errors.squares / 2.0 + float(total), found)

    def __add__(self, other: "LocalSums") -> "LocalSums":
        """Return the sums over the elements of both operands."""
        return LocalSums(self.errors + other.errors, self.nll + other.nll, self.counts + other.counts)

    @cached_property
    def mean_nll(self) -> float:
        """The mean over the counted elements of e²/2 + ln σ."""
        return self.nll / max(self.errors.count, 1)
