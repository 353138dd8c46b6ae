"""Activation functions: GELU in its two forms, ReLU, tanh."""

from typing import ClassVar

import numpy as np
from scipy.special import erf, expit

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured
from conformance.numerics.functions import gelu_argument
from conformance.numerics.memo import cached_property
from conformance.oracle.maps import LinearMap, Roundings, diagonal
from conformance.oracle.step import Step, elementwise


class Pointwise(Step):
    """A function applied to each element of one parent."""

    @cached_property
    def slope(self) -> Array:
        """f′(x)."""
        raise NotImplementedError

    def moved_by(self, *errors: Captured) -> Captured:
        """f'(x) e where e is so small that the next term, at most e², is below 2^-12 of e; else the difference itself."""
        (e,) = errors
        return self.slope * e if max(e.max(initial=0.0), -e.min(initial=0.0)) < 2.0**-12 else super().moved_by(e)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """diag(f'(x))."""
        return (diagonal(self.slope),)


def gelu(x: Array) -> Array:
    """x Φ(x) = x/2 · (1 + erf(x/√2)); Hendrycks and Gimpel 2016, section 2."""
    return np.asarray(x / 2.0 * (1.0 + erf(x / np.sqrt(2.0))))


def gelu_tanh(x: Array) -> Array:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), the approximation of the same section."""
    return np.asarray(x / 2.0 * (1.0 + np.tanh(gelu_argument(x))))


class Gelu(Pointwise):
    """y = x/2 · (1 + erf(x/√2))."""

    @cached_property
    def _erf(self) -> Array:
        return np.asarray(erf(self.parents[0] / np.sqrt(2.0)))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self.parents[0] / 2.0 * (1.0 + self._erf))

    @cached_property
    def _density_term(self) -> Array:
        x = self.parents[0]
        term = np.exp(x**2 * -0.5)
        term *= x
        term /= np.sqrt(2.0 * np.pi)
        return np.asarray(term)

    @cached_property
    def slope(self) -> Array:
        """f′(x)."""
        return np.asarray((1.0 + self._erf) / 2.0 + self._density_term)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Random: the argument, relative u, moves y by x² φ(x) u; erf and 1 + erf round; two products of relative u; the store.

        Bound: |x|/2 times the error of erf, of a kernel of erf or of one of GELU, which near −3, where 1 + erf cancels, is many
        ulp of y; and the constant 1/√2 is rounded, relative u.
        """
        x, y, e, inner = self.parents[0], self.value, self._erf, arithmetic.elementwise
        argument, half = np.abs(x * self._density_term), np.abs(x) / 2.0
        variance = inner.rounding_variance(1.0 + e)
        variance += arithmetic.function_variance(e)
        variance *= half**2
        variance += inner.unit_roundoff**2 / 3.0 * (argument**2 + 2.0 * y**2)
        variance += arithmetic.storage.rounding_variance(y)
        wide = arithmetic.accumulate
        bound = arithmetic.functions.error("erf", e, wide)
        np.maximum(bound, arithmetic.functions.absolute("gelu", wide), out=bound)
        bound *= half
        bound += argument * wide.unit_roundoff
        return elementwise(variance, bound)


class Silu(Gelu):
    """y = x σ(k x), k = 1; its roundings are taken as those of GELU."""

    factor: ClassVar[float] = 1.0

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self.parents[0] * expit(self.factor * self.parents[0]))


class QuickGelu(Silu):
    """y = x σ(1.702 x); Hendrycks and Gimpel 2016, section 2."""

    factor: ClassVar[float] = 1.702


class GeluTanh(Pointwise):
    """y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    @cached_property
    def _tanh(self) -> Array:
        x = self.parents[0]
        return np.asarray(np.tanh(gelu_argument(x)))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return gelu_tanh(self.parents[0])

    @cached_property
    def slope(self) -> Array:
        """f′(x)."""
        x = self.parents[0]
        inner = np.sqrt(2.0 / np.pi) * (1.0 + 3.0 * 0.044715 * x**2)
        return np.asarray((1.0 + self._tanh) / 2.0 + x / 2.0 * (1.0 - self._tanh**2) * inner)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As for `Gelu`, with t the argument of tanh: four roundings on the way to it, two rounded constants."""
        x, y, inner = self.parents[0], self.value, arithmetic.elementwise
        u2 = inner.unit_roundoff**2 / 3.0
        t = gelu_argument(x)
        argument = np.abs(x / 2.0 * (1.0 - self._tanh**2) * t)
        functions = inner.rounding_variance(1.0 + self._tanh) + arithmetic.function_variance(self._tanh)
        variance = u2 * (4.0 * argument**2 + 2.0 * y**2) + (x / 2.0) ** 2 * functions
        wide = arithmetic.accumulate
        tanh_error, fused_error = (
            arithmetic.functions.error("tanh", self._tanh, wide),
            arithmetic.functions.absolute("gelu_tanh", wide),
        )
        bound = np.abs(x) / 2.0 * np.maximum(tanh_error, fused_error) + 2.0 * argument * wide.unit_roundoff
        return elementwise(variance + arithmetic.storage.rounding_variance(y), bound)


class Relu(Pointwise):
    """y = max(x, 0)."""

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.maximum(self.parents[0], 0.0)

    @cached_property
    def slope(self) -> Array:
        """f′(x)."""
        return np.asarray(self.parents[0] > 0.0, np.float64)

    def moved_by(self, *errors: Captured) -> Captured:
        """The difference itself: the slope at x knows nothing of the kink."""
        return Step.moved_by(self, *errors)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """None but the store of what a fused kernel did not round before."""
        return elementwise(arithmetic.storage.rounding_variance(self.value))


class Tanh(Pointwise):
    """y = tanh(x)."""

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.tanh(self.parents[0])

    @cached_property
    def slope(self) -> Array:
        """f′(x)."""
        return 1.0 - self.value**2

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Bound: the function's own error in the accumulation format; random: the rounding of the result."""
        bound = arithmetic.functions.error("tanh", self.value, arithmetic.accumulate)
        return elementwise(arithmetic.storage.rounding_variance(self.value), bound)
