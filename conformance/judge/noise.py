"""Error of a correct candidate at one activation: random sigma, deterministic bound, and projection on a direction."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.judge.judged_elements import zeroed
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Format, Mask, as_array
from conformance.numerics.memo import cached_property
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
