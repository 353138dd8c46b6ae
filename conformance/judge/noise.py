"""The error of a correct candidate at one activation, and sums of a candidate's error in units of it.

A correct candidate's error has a random part, sigma, and a deterministic bound; its projection on a direction counts every
correlation. Of a residual, RMS and maximum in sigma, largest difference and index, and likelihood are sums over blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import Error
from conformance.judge.judged_elements import zeroed
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Captured, Format, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import ErrorLimits
from conformance.oracle.linear_maps import Roundings


@dataclass(frozen=True)
class Noise:
    """The error that a correct candidate may make at one activation.

    Attributes:
        sigma: standard deviation of each element's random error.
        bound: largest deterministic error; broadcasts to `sigma`.
        judged: mask of the judged elements.
        projected: function of weights w that returns the variance of Σ w · noise, with all correlations, and the largest
            contribution of deterministic errors to that sum.
        storing: function that returns the error of the correct result that library calls round to storage, where that is most of
            the error of a correct candidate; None elsewhere.
        summing: function of weights w that returns Σ w e for the errors e that rounding a residual sum to storage makes; None where
            they are not known.
    """

    sigma: Array
    bound: Array | float
    judged: Mask
    projected: Callable[[Array], tuple[float, float]]
    storing: Callable[[], Array] | None = None
    summing: Callable[[Array], float] | None = None

    @cached_property
    def all_judged(self) -> bool:
        """Whether every element is judged."""
        return bool(self.judged.all())

    @cached_property
    def is_bounded(self) -> bool:
        """Whether any element has a deterministic error."""
        return bool(np.any(self.bound))

    @cached_property
    def precision(self) -> Array:
        """The weight of each element: 1/(σ² + b²), and 0 where it is not judged."""
        precision = as_array(np.square(self.sigma))
        if self.is_bounded:
            precision += np.square(self.bound)
        np.divide(1.0, precision, out=precision)
        return zeroed(precision, self.judged)

    def stored(self, weights: Array) -> float:
        """Return Σ w e for the errors e of the correct result as library calls round it to storage, or 0 where `storing` is None.

        Rounding errors are independent of one another only if the results lie apart by an ulp or more. Results that are nearly
        equal, such as the probabilities of nearly equal scores, have nearly equal errors, which add up to far more than random
        ones. That sum is known, and a correct candidate that makes these calls has it.
        """
        return 0.0 if self.storing is None else float(np.vdot(weights, self.storing()))

    def summed(self, weights: Array) -> float:
        """Return Σ w e for the errors e that rounding a residual sum to storage makes, or 0 where they are not known.

        Where one addend is less than half an ulp of the other, it is lost, and the error is not random: it is that of a norm
        without this addend.
        """
        return 0.0 if self.summing is None else self.summing(weights)


def of_segment(segment: Segment, hypothesis: Hypothesis, judged: Mask, *, apart: bool = False) -> Noise:
    """Return the noise of a segment's steps under a hypothesis; `apart` as for `Segment.projected`."""
    variance, arithmetic = segment.propagate(segment.leaf_variance(hypothesis), hypothesis), hypothesis.arithmetic
    is_known = arithmetic.is_mixed and hypothesis.parents == "as captured"  # What was stored, if the inputs are known.
    return Noise(
        np.sqrt(variance),
        segment.bound(hypothesis),
        judged,
        lambda w: segment.projected(w, hypothesis, apart=apart),
        (lambda: segment.storing(arithmetic)) if is_known else None,
        (lambda w: segment.summing(w, arithmetic.storage)) if is_known else None,
    )


def of_exact(value: Array, storage: Format, judged: Mask, roundings: Roundings | None = None) -> Noise:
    """Return a nominal noise to name faults at an exact activation: the largest value's rounding error at every element.

    Args:
        value: the correct value.
        storage: the storage format.
        judged: mask of the judged elements.
        roundings: the errors of a faulty step that computes what should be looked up; None for a step that makes none.
    """
    variance = np.broadcast_to(storage.rounding_variance(np.abs(value).max(keepdims=True)), value.shape)
    bound = np.zeros(())
    if roundings is not None:
        variance, bound = variance + roundings.variance(), as_array(roundings.bound)
    return Noise(np.sqrt(variance), bound, judged, lambda w: (float((variance * w**2).sum()), float((bound * np.abs(w)).sum())))


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
    """Sums of a local residual under one hypothesis: its error, and Σ (e²/2 + ln σ)."""

    errors: ErrorSums
    nll: float

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
        logarithms = np.log(noise.sigma)
        total = logarithms.sum() if count == residual.size else np.sum(logarithms, where=counted)
        return cls(errors, errors.squares / 2.0 + float(total))

    def __add__(self, other: "LocalSums") -> "LocalSums":
        """Return the sums over the elements of both operands."""
        return LocalSums(self.errors + other.errors, self.nll + other.nll)

    @cached_property
    def mean_nll(self) -> float:
        """The mean over the counted elements of e²/2 + ln σ."""
        return self.nll / max(self.errors.count, 1)
