"""Gradients of the losses with numeric targets with respect to the logits."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal, of_scalar
from conformance.oracle.step import elementwise_roundings
from conformance.oracle.target_losses import BinaryEntropy, Squared, Targeted


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
