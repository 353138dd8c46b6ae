"""Dropout with a given mask, and its gradient, which has the same equation."""

import numpy as np

from conformance.model.dropout import rate_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal
from conformance.oracle.step import Step, elementwise_roundings


class Dropout(Step):
    """y = x m / (1 − p) with the mask m of kept elements, in the shape of x. The gradient ∂L/∂x is ∂L/∂y · m / (1 − p)."""

    @property
    def rate(self) -> float:
        """The dropout probability p."""
        return rate_of(self.site.activation.dropout, self.site.architecture)

    @property
    def kept(self) -> Array:
        """The mask m: 1 for kept elements and 0 for dropped ones."""
        assert self.site.kept is not None, "the masks of a network in training mode are given"
        return self.site.kept

    @cached_property
    def factor(self) -> Array:
        """The factor m / (1 − p); zero everywhere if p = 1."""
        return self.kept / (1.0 - self.rate) if self.rate < 1.0 else np.zeros_like(self.kept)

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return self.factor * self.parents[0]

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return diag(m / (1 − p))."""
        return (diagonal(self.factor),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the product (random) and of the factor (bound).

        The bound is |y| times the relative errors of 1 − p and of its inverse, and of the scaled mask if that is stored.
        """
        scale = 2.0 * arithmetic.accumulate.unit_roundoff
        if arithmetic.is_mixed and arithmetic.rounding != "fused":
            scale += arithmetic.storage.unit_roundoff
        variance = np.maximum(arithmetic.storage.rounding_variance(self.value), arithmetic.storage.floor_variance)
        return elementwise_roundings(variance, scale * np.abs(self.value))
