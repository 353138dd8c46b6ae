"""Gradients of the losses with respect to logits and log-probabilities."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal, of_scalar
from conformance.oracle.losses import Choice, Labelled, Span
from conformance.oracle.step import Step, elementwise_roundings


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
        scale, p = self.scale, self.spread(np.exp(self.log_softmax.value))
        unit = self.value / float(self.parents[0]) if float(self.parents[0]) else np.zeros_like(self.value)

        def variance(v: Array) -> Array:
            return as_array((scale * p) ** 2 * np.maximum((1.0 - 2.0 * p) * v + self.over_classes(p**2 * v), 0.0))

        def adjoint(u: Array) -> Array:
            return as_array(scale * p * (u - self.over_classes(p * u)))

        return of_scalar(unit), LinearMap(variance, adjoint)

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
