"""Gradients of the losses with respect to logits and log-probabilities.

Those with numeric targets have their own equations.
"""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal, of_scalar
from conformance.oracle.losses import BinaryEntropy, Choice, Labelled, Span, Squared, Targeted
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


class TargetLossBackward(Targeted):
    """∂L/∂x = w ∂l/∂x / N; w (), x and result (B, C).

    Subclasses define the derivative of ∂l/∂x and the variance of its rounding errors.
    """

    @property
    def scale(self) -> float:
        """The factor w / N."""
        return float(self.parents[0]) / self.logits.size

    @property
    def curvature(self) -> Array:
        """The second derivative ∂²l/∂x², (B, C)."""
        raise NotImplementedError

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """Return the variance of the rounding errors of ∂l/∂x, (B, C)."""
        raise NotImplementedError

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (B, C)."""
        return self.scale * self.slope

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return y / w by w, and w/N ∂²l/∂x² by x."""
        return of_scalar(self.slope / self.logits.size), diagonal(self.scale * self.curvature)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of ∂l/∂x times w/N, of w/N and the product with it, relative u each, and of the rounding to storage."""
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        own = self.scale**2 * self.slope_variance(arithmetic) + 2.0 * u2 * self.value**2
        return elementwise_roundings(
            np.maximum(own + arithmetic.storage_rounding_variance(self.value), arithmetic.storage.floor_variance)
        )


class SquaredErrorBackward(Squared, TargetLossBackward):
    """∂L/∂x = 2w (x − t) / N."""

    @property
    def curvature(self) -> Array:
        """The second derivative, 2 everywhere, (B, C)."""
        return np.full(self.logits.shape, 2.0, like=self.logits)

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """Return the errors of the difference and of one product, as in autograd of d², relative u each.

        If each call stores its result, the difference is stored.
        """
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        return as_array(2.0 * u2 * self.slope**2 + 4.0 * arithmetic.call_rounding_variance(self.slope / 2.0))


class BinaryCrossEntropyBackward(BinaryEntropy, TargetLossBackward):
    """∂L/∂x = w (σ(x) − t) / N."""

    @property
    def curvature(self) -> Array:
        """The second derivative σ (1 − σ), (B, C)."""
        return self.sigmoid * (1.0 - self.sigmoid)

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """Return the errors of σ and of the difference.

        σ has one rounding, relative u, and the error of the function; the difference has one rounding, relative u. If each call
        stores its result, both are stored.
        """
        inner, s = arithmetic.elementwise_format, self.sigmoid
        own = inner.unit_roundoff**2 * (s**2 + self.slope**2) + arithmetic.functions.error("sigmoid", s, inner) ** 2
        return as_array(own / 3.0 + arithmetic.call_rounding_variance(s) + arithmetic.call_rounding_variance(self.slope))
