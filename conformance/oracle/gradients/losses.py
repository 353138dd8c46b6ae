"""Gradients of the losses with respect to logits and log-probabilities.

Those with numeric targets have their own equations.
"""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal, of_scalar
from conformance.oracle.losses import BinaryEntropy, Choice, Labelled, Span, Squared, Targeted
from conformance.oracle.softmax import jacobian_of_softmax
from conformance.oracle.step import Step, elementwise_roundings
from conformance.oracle.trace import Trace, Traced


class CrossEntropyBackward(Labelled):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N at the N labelled rows, 0 elsewhere; w (), x and result (..., C)."""

    @property
    def scale(self) -> float:
        """The factor w / N."""
        return float(self.parents[0]) / len(self.rows[1])

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x."""
        return self.scale * self.spread(self.minus_onehot(np.exp(self.log_softmax.value)))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return y / w by w, and w/N times the Jacobian of the softmax at labelled rows by x."""
        scale, softmax = self.scale, jacobian_of_softmax(np.exp(self.log_softmax.value))
        unit = self.value / float(self.parents[0]) if float(self.parents[0]) else np.zeros_like(self.value)
        of_logits = LinearMap(
            lambda v: self.spread(scale**2 * softmax.variance(self.of_rows(np.broadcast_to(v, unit.shape)))),
            lambda u: self.spread(scale * softmax.adjoint(self.of_rows(u))),
        )
        return of_scalar(unit), of_logits

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the error of the log-softmax saved in the forward pass, times w p/N, and the elementwise errors.

        Elementwise errors: u²/3 times the squares of w p/N twice (the rounding of exp, and the product) and of y twice (including
        the rounding of w/N), a third of the square of exp's relative error times that of w p/N, and the rounding to storage.
        """
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        share = self.scale * self.spread(np.exp(self.log_softmax.value))
        kept = self.log_softmax.roundings(arithmetic.intermediate()).variance()
        exponential = arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        own = (2.0 * u2 + exponential + self.spread(kept)) * share**2 + 2.0 * u2 * self.value**2
        return elementwise_roundings(
            np.maximum(own + arithmetic.storage_rounding_variance(self.value), arithmetic.storage.floor_variance)
        )


class SpanCrossEntropyBackward(Span, CrossEntropyBackward):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N over the positions, at the start or end logits of N labelled rows; 0 elsewhere."""

    couples_positions = True


class ChoiceCrossEntropyBackward(Choice, CrossEntropyBackward):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N over the rows of each of the N labelled questions, 0 elsewhere; x (B, 1)."""


class MeanLossBackward(Step):
    """∂L/∂L_i = w / 2 for each of the two losses that the mean loss L averages; w ()."""

    @property
    def value(self) -> Array:
        """The gradient w / 2, a 0-d array."""
        return as_array(self.parents[0] / 2.0)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return 1/2."""
        return (diagonal(as_array(0.5)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the variance floor for underflow; halving is exact otherwise."""
        return elementwise_roundings(np.full(self.value.shape, arithmetic.storage.floor_variance, like=self.value))


class NegativeLogLikelihoodBackward(Labelled):
    """∂L/∂l = −w onehot(label) / N at the N labelled rows, 0 elsewhere; w (), l and result (..., C)."""

    @cached_property
    def _unit(self) -> Array:
        log_probs, labels = self.rows
        return self.spread(self.minus_onehot(np.zeros_like(log_probs)) / len(labels))

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂l."""
        return float(self.parents[0]) * self._unit

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return y / w by w, and 0 by l."""
        return of_scalar(self._unit), LinearMap(np.zeros_like, np.zeros_like)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return u²/3 · y² for the division, and the rounding to storage."""
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        own = u2 * self.value**2 + arithmetic.storage_rounding_variance(self.value)
        return elementwise_roundings(np.maximum(own, arithmetic.storage.floor_variance))


class TargetLossBackward(Targeted):
    """∂L/∂x = w ∂l/∂x / N; w (), x and result (B, C)."""

    @property
    def scale(self) -> float:
        """The factor w / N."""
        return float(self.parents[0]) / self.logits.size

    @cached_property
    def _slope(self) -> tuple[Traced, Trace]:
        x = Traced(self.logits)
        return x, Trace(self.slope(x))

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (B, C)."""
        return self.scale * self._slope[1].result.value

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return y / w by w, and w/N ∂²l/∂x² by x."""
        x, trace = self._slope
        curvature = trace.effects[x.number].adjoint(np.ones_like(self.logits))
        return of_scalar(trace.result.value / self.logits.size), diagonal(self.scale * curvature)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of ∂l/∂x times w/N, of w/N and the product with it, relative u each, and of the rounding to storage."""
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        own = self.scale**2 * self._slope[1].variance(arithmetic) + 2.0 * u2 * self.value**2
        return elementwise_roundings(
            np.maximum(own + arithmetic.storage_rounding_variance(self.value), arithmetic.storage.floor_variance)
        )


class SquaredErrorBackward(Squared, TargetLossBackward):
    """∂L/∂x = 2w (x − t) / N."""


class BinaryCrossEntropyBackward(BinaryEntropy, TargetLossBackward):
    """∂L/∂x = w (σ(x) − t) / N."""
