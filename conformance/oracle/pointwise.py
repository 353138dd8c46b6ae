"""Activation functions: both forms of GELU, SiLU, ReLU and tanh.

Dropout with a given mask is one as well, and its gradient has the same equation.
"""

from typing import ClassVar

import numpy as np
from scipy.special import expit

from conformance.model.activations import rate_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured, as_array
from conformance.numerics.functions import SIGMOID_FACTOR, TANH_CUBIC, TANH_OUTER, erf, gelu_argument, gelu_argument_slope
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal
from conformance.oracle.step import Step, elementwise_roundings


class Pointwise(Step):
    """A function applied to each element of one parent."""

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x)."""
        raise NotImplementedError

    def effect_of(self, *errors: Captured) -> Captured:
        """Return f'(x) e if e is so small that the next term, at most e², is below 2^-12 of e; otherwise the exact difference."""
        (e,) = errors
        return self.slope * e if max(e.max(initial=0.0), -e.min(initial=0.0)) < 2.0**-12 else super().effect_of(e)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return diag(f'(x))."""
        return (diagonal(self.slope),)


def gated(x: Array, gate: Array) -> Array:
    """Return x/2 · (1 + g), the form of both GELUs; g is an erf or a tanh."""
    return as_array(x / 2.0 * (1.0 + gate))


def gelu(x: Array) -> Array:
    """Return x Φ(x) = x/2 · (1 + erf(x/√2)); Hendrycks and Gimpel 2016, section 2."""
    return gated(x, erf(x / np.sqrt(2.0)))


def gelu_tanh(x: Array, outer: float = TANH_OUTER, cubic: float = TANH_CUBIC) -> Array:
    """Return x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), GELU's tanh approximation, or the same with other constants."""
    return gated(x, np.tanh(gelu_argument(x, outer, cubic)))


def silu(x: Array, factor: float = 1.0) -> Array:
    """Return x σ(k x)."""
    return as_array(x * expit(factor * x))


class Gelu(Pointwise):
    """y = x/2 · (1 + erf(x/√2))."""

    @cached_property
    def _erf(self) -> Array:
        return erf(self.parents[0] / np.sqrt(2.0))

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return gated(self.parents[0], self._erf)

    @cached_property
    def _density_term(self) -> Array:
        x = self.parents[0]
        term = np.exp(x**2 * -0.5)
        term *= x
        term /= np.sqrt(2.0 * np.pi)
        return as_array(term)

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x)."""
        return as_array((1.0 + self._erf) / 2.0 + self._density_term)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of GELU.

        Random errors: the argument, relative u, changes y by x² φ(x) u; erf and 1 + erf are rounded; two products of relative u;
        the rounding to storage.

        Bound: `FunctionErrorBounds.gelu`.
        """
        x, y, e, inner = self.parents[0], self.value, self._erf, arithmetic.elementwise_format
        argument, half = np.abs(x * self._density_term), np.abs(x) / 2.0
        variance = inner.rounding_variance(1.0 + e)
        variance += arithmetic.inner_rounding_variance(e)
        variance *= half**2
        variance += inner.unit_roundoff**2 / 3.0 * (argument**2 + 2.0 * y**2)
        variance += arithmetic.storage.rounding_variance(y)
        return elementwise_roundings(variance, arithmetic.functions.gelu("gelu", e, half, argument, arithmetic.accumulate))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the two products and of the rounding to storage, and the bound of a fused kernel's erf."""
        variance = np.square(self.value)
        variance *= 2.0 / 3.0 * arithmetic.elementwise_format.unit_roundoff**2
        variance += arithmetic.storage_rounding_variance(self.value)
        np.maximum(variance, arithmetic.storage.floor_variance, out=variance)
        half = arithmetic.functions.absolute("gelu", arithmetic.accumulate) / 2.0
        return elementwise_roundings(variance, half * np.abs(self.parents[0]))


class Silu(Gelu):
    """y = x σ(k x), k = 1; its rounding errors are taken to be those of GELU."""

    factor: ClassVar[float] = 1.0

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return silu(self.parents[0], self.factor)


class QuickGelu(Silu):
    """y = x σ(1.702 x); Hendrycks and Gimpel 2016, section 2."""

    factor: ClassVar[float] = SIGMOID_FACTOR


class GeluTanh(Pointwise):
    """y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    @cached_property
    def _tanh(self) -> Array:
        x = self.parents[0]
        return as_array(np.tanh(gelu_argument(x)))

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return gated(self.parents[0], self._tanh)

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x)."""
        x = self.parents[0]
        return as_array((1.0 + self._tanh) / 2.0 + x / 2.0 * (1.0 - self._tanh**2) * gelu_argument_slope(x))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of GELU's tanh form, derived like those of `Gelu`.

        The argument t of tanh has four roundings and two rounded constants.
        """
        x, y, inner = self.parents[0], self.value, arithmetic.elementwise_format
        u2 = inner.unit_roundoff**2 / 3.0
        t = gelu_argument(x)
        argument = np.abs(x / 2.0 * (1.0 - self._tanh**2) * t)
        functions = inner.rounding_variance(1.0 + self._tanh) + arithmetic.inner_rounding_variance(self._tanh)
        functions = functions + tanh_variance(t, arithmetic)
        variance = u2 * (4.0 * argument**2 + 2.0 * y**2) + (x / 2.0) ** 2 * functions
        bound = arithmetic.functions.gelu("gelu_tanh", self._tanh, np.abs(x) / 2.0, argument, arithmetic.accumulate)
        return elementwise_roundings(variance + arithmetic.storage.rounding_variance(y), bound)


class Relu(Pointwise):
    """y = max(x, 0)."""

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return np.maximum(self.parents[0], 0.0)

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x): 1 where x > 0, else 0."""
        return as_array(self.parents[0] > 0.0, np.float64)

    def effect_of(self, *errors: Captured) -> Captured:
        """Return the exact difference, since the slope at x does not account for the kink at 0."""
        return Step.effect_of(self, *errors)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return all errors of x for x above −`LARGEST_DEVIATION` deviations, and none below: an error may move x across 0."""
        if not errors.any:
            return errors
        variance = errors.variance
        return CorrelatedErrors(np.where(self.parents[parent] > -LARGEST_DEVIATION * np.sqrt(variance), variance, 0.0))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding to storage alone; it applies if a fused kernel passes on an unrounded x."""
        return elementwise_roundings(arithmetic.storage.rounding_variance(self.value))


class Tanh(Pointwise):
    """y = tanh(x)."""

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return np.tanh(self.parents[0])

    @cached_property
    def slope(self) -> Array:
        """The derivative f′(x) = 1 − y²."""
        return 1.0 - self.value**2

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the function's error in the accumulation format (bound), the rounding of the result and `tanh_variance`."""
        bound = arithmetic.functions.error("tanh", self.value, arithmetic.accumulate)
        variance = arithmetic.storage.rounding_variance(self.value) + tanh_variance(self.parents[0], arithmetic)
        return elementwise_roundings(variance, bound)


def tanh_variance(x: Array, arithmetic: Arithmetic) -> Array | float:
    """Return the variance of the roundings inside tanh(x); 0 unless every operation rounds to storage.

    Of the forms without cancellation, −t/(t + 2) with t = expm1(−2|x|) has the largest errors: those of t and of t + 2.
    """
    if not arithmetic.rounds_inside:
        return 0.0
    e = np.exp(-2.0 * np.abs(x))
    of_t, of_sum = (arithmetic.inner_rounding_variance(stored) for stored in (1.0 - e, 1.0 + e))
    return as_array((4.0 * of_t / (1.0 + e) ** 2 + of_sum * ((1.0 - e) / (1.0 + e)) ** 2) / (1.0 + e) ** 2)


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
