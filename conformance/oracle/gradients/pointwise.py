"""Gradients of activation functions: f′(x) w, elementwise."""

from typing import ClassVar

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.functions import TANH_CUBIC, TANH_OUTER, gelu_argument, gelu_argument_slope
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal
from conformance.oracle.pointwise import Gelu, GeluTanh, Pointwise
from conformance.oracle.step import Step, elementwise_roundings


class _OfFunction(Step):
    """∂L/∂x = f′(x) w; w, x and the result have the same shape."""

    function: ClassVar[type[Pointwise]]

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x)."""
        return self.function(self.site, self.parents[1]).slope

    @property
    def _curvature(self) -> Array:
        """The second derivative f″(x)."""
        raise NotImplementedError

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x."""
        return self.slope * self.parents[0]

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return diag(f′) by w and diag(f″ w) by x."""
        return diagonal(self.slope), diagonal(self._curvature * self.parents[0])


class GeluBackward(_OfFunction):
    """The gradient of GELU, f′(x) = Φ(x) + x φ(x)."""

    function = Gelu

    @cached_property
    def density(self) -> Array:
        """The term x φ(x)."""
        x = self.parents[1]
        return as_array(x * np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi))

    @property
    def _curvature(self) -> Array:
        """The second derivative φ(x) (2 − x²)."""
        x = self.parents[1]
        return as_array(np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi) * (2.0 - x**2))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of w f′(x).

        Random errors: u²/3 · w² times the squares of Φ, x φ, x³ φ (the error of the exponent) and f′, twice each; a third of the
        square of exp's relative error times that of x φ; the rounding to storage; and in native arithmetic the storage of
        intermediates: erf, half of which enters Φ, Φ, x φ, w Φ, w x φ, and w x/2, which is multiplied by 2 φ.

        Bound: |w|/2 times the error of erf.
        """
        (w, x), y, inner, wide = self.parents, self.value, arithmetic.elementwise_format, arithmetic.accumulate
        u2, slope = inner.unit_roundoff**2 / 3.0, self.slope
        density = self.density
        share = slope - density
        exponential = arithmetic.functions.relative("exp", wide) ** 2 / 3.0
        random = 2.0 * u2 * (share**2 + density**2 + (x**2 * density) ** 2 + slope**2) + exponential * density**2
        random = random + arithmetic.inner_rounding_variance(share) + arithmetic.inner_rounding_variance(density)
        random = random + arithmetic.inner_rounding_variance(2.0 * share - 1.0) / 4.0
        products = arithmetic.inner_rounding_variance(w * share) + arithmetic.inner_rounding_variance(w * density)
        products = products + arithmetic.inner_rounding_variance(w * x / 2.0) * (2.0 * np.exp(-(x**2) / 2.0)) ** 2 / (2.0 * np.pi)
        bound = np.abs(w) / 2.0 * arithmetic.functions.error("erf", 2.0 * share - 1.0, wide)
        variance = w**2 * random + products + arithmetic.storage_rounding_variance(y)
        return elementwise_roundings(np.maximum(variance, arithmetic.storage.floor_variance), bound)


class GeluTanhBackward(_OfFunction):
    """The gradient of tanh-GELU, f′(x) = (1 + t)/2 + x/2 · (1 − t²) h′ with t = tanh(h) and h = √(2/π) (x + 0.044715 x³)."""

    function = GeluTanh

    @cached_property
    def _parts(self) -> tuple[Array, Array, Array]:
        """h, t and h′."""
        x = self.parents[1]
        h = gelu_argument(x)
        return h, np.tanh(h), gelu_argument_slope(x)

    @property
    def _curvature(self) -> Array:
        """The second derivative (1 − t²) (h′ + x/2 · (h″ − 2 t h′²))."""
        x, (_, t, slope) = self.parents[1], self._parts
        second = TANH_OUTER * 6.0 * TANH_CUBIC * x
        return as_array((1.0 - t**2) * (slope + x / 2.0 * (second - 2.0 * t * slope**2)))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of w f′(x).

        Random errors: u²/3 · w² times the squares of h ∂f′/∂h and of the two terms of f′, four times each, and of f′; the rounding
        to storage; and in native arithmetic the storage of intermediates: t; w times either term; and, on the way to the second
        term, w x/2, its product with 1 − t², and the products of the latter with √(2/π) and with 0.044715, each multiplied by the
        remaining factors.

        Bound: |w| times |1/2 − x t h′| times the error of tanh, and two rounded constants in h.
        """
        (w, x), y, inner, wide = self.parents, self.value, arithmetic.elementwise_format, arithmetic.accumulate
        (h, t, slope), u2 = self._parts, inner.unit_roundoff**2 / 3.0
        by_tanh = np.abs(0.5 - x * t * slope)
        by_argument = np.abs(h) * (1.0 - t**2) * by_tanh
        first, second = (1.0 + t) / 2.0, x / 2.0 * (1.0 - t**2) * slope
        random = u2 * (4.0 * (by_argument**2 + first**2 + second**2) + self.slope**2)
        random = random + by_tanh**2 * arithmetic.inner_rounding_variance(t)
        half, stored = w * x / 2.0, arithmetic.inner_rounding_variance
        inner_slope, c, k = half * (1.0 - t**2), TANH_OUTER, TANH_CUBIC
        products = stored(w * first) + 2.0 * stored(w * second) + ((1.0 - t**2) * slope) ** 2 * stored(half)
        products = products + slope**2 * stored(inner_slope) + (slope / c) ** 2 * stored(c * inner_slope)
        products = products + (3.0 * x**2) ** 2 * stored(c * k * inner_slope)
        bound = np.abs(w) * (by_tanh * arithmetic.functions.error("tanh", t, wide) + 2.0 * by_argument * wide.unit_roundoff)
        variance = w**2 * random + products + arithmetic.storage_rounding_variance(y)
        return elementwise_roundings(np.maximum(variance, arithmetic.storage.floor_variance), bound)


class ReluBackward(Step):
    """The gradient of ReLU: w where x > 0, else 0."""

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x."""
        w, x = self.parents
        return np.where(x > 0.0, w, 0.0)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return 1 where x > 0 by w, and 0 by x."""
        kept = (self.parents[1] > 0.0).astype(np.float64)
        return diagonal(kept), diagonal(np.zeros_like(kept))

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result; an error of x that may move x across 0 changes the result by up to |w|."""
        if parent == 0 or not errors.any:
            return super().through(parent, errors)
        w, x = self.parents
        return CorrelatedErrors(np.where(np.abs(x) < LARGEST_DEVIATION * np.sqrt(errors.variance), np.square(w), 0.0))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the variance floor of the format; nothing is rounded."""
        return elementwise_roundings(np.full_like(self.value, arithmetic.storage.floor_variance))


class TanhBackward(Step):
    """∂L/∂x = (1 − y²) w with y = tanh(x); w, y and the result have the same shape."""

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x."""
        w, y = self.parents
        return (1.0 - y**2) * w

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return diag(1 − y²) by w and diag(−2 y w) by y."""
        w, y = self.parents
        return diagonal(1.0 - y**2), diagonal(-2.0 * y * w)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of (1 − y²) w.

        They are u²/3 · w² times the squares of y² and of 1 − y² (twice, once for the product), the storage of intermediates in
        native arithmetic, and the rounding to storage.
        """
        (w, y), u2 = self.parents, arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        left = 1.0 - y**2
        random = (
            u2 * (np.square(y**2) + 2.0 * left**2)
            + arithmetic.inner_rounding_variance(y**2)
            + arithmetic.inner_rounding_variance(left)
        )
        variance = w**2 * random + arithmetic.storage_rounding_variance(self.value)
        return elementwise_roundings(np.maximum(variance, arithmetic.storage.floor_variance))
