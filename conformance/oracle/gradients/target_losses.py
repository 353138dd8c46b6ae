"""Gradients of the losses against numbers with respect to logits."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.maps import LinearMap, Roundings, diagonal
from conformance.oracle.step import elementwise
from conformance.oracle.target_losses import Targeted, sigmoid


class TargetLossBackward(Targeted):
    """∂L/∂x = w ∂l/∂x / N; w (), x and result (B, C). Subclasses have ∂l/∂x, its derivative and what rounds on the way to it."""

    @property
    def scale(self) -> float:
        """w / N."""
        return float(self.parents[0]) / self.logits.size

    @property
    def slope(self) -> Array:
        """∂l/∂x."""
        raise NotImplementedError

    @property
    def curvature(self) -> Array:
        """∂²l/∂x²."""
        raise NotImplementedError

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """Of the roundings of ∂l/∂x."""
        raise NotImplementedError

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self.scale * self.slope

    def jacobians(self) -> tuple[LinearMap, ...]:
        """y / w, and w/N ∂²l/∂x²."""
        unit = self.slope / self.logits.size
        of_loss = LinearMap(lambda v: unit**2 * v, lambda u: np.asarray((unit * u).sum()))
        return of_loss, diagonal(self.scale * self.curvature)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of ∂l/∂x times w/N; w/N and the product with it, relative u each; the store."""
        u2 = arithmetic.elementwise.unit_roundoff**2 / 3.0
        own = self.scale**2 * self.slope_variance(arithmetic) + 2.0 * u2 * self.value**2
        return elementwise(np.maximum(own + arithmetic.store_variance(self.value), arithmetic.storage.floor_variance))


class SquaredErrorBackward(TargetLossBackward):
    """∂L/∂x = 2w (x − t) / N."""

    @cached_property
    def slope(self) -> Array:
        """2 (x − t)."""
        return 2.0 * (self.logits - self.targets)

    @property
    def curvature(self) -> Array:
        """2."""
        return np.full(self.logits.shape, 2.0)

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """The difference rounds, relative u, and a product of it, as autograd of d² forms one; a call stores the difference."""
        u2 = arithmetic.elementwise.unit_roundoff**2 / 3.0
        return np.asarray(2.0 * u2 * self.slope**2 + 4.0 * arithmetic.call_variance(self.slope / 2.0))


class BinaryCrossEntropyBackward(TargetLossBackward):
    """∂L/∂x = w (σ(x) − t) / N."""

    @cached_property
    def _sigmoid(self) -> Array:
        return sigmoid(self.logits)

    @property
    def slope(self) -> Array:
        """σ(x) − t."""
        return self._sigmoid - self.targets

    @property
    def curvature(self) -> Array:
        """σ (1 − σ)."""
        return self._sigmoid * (1.0 - self._sigmoid)

    def slope_variance(self, arithmetic: Arithmetic) -> Array:
        """σ rounds, relative u, and its function's error; the difference rounds, relative u; calls store both."""
        inner, s = arithmetic.elementwise, self._sigmoid
        own = inner.unit_roundoff**2 * (s**2 + self.slope**2) + arithmetic.functions.error("sigmoid", s, inner) ** 2
        return np.asarray(own / 3.0 + arithmetic.call_variance(s) + arithmetic.call_variance(self.slope))
