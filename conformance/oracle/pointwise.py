"""Activation functions: both forms of GELU, SiLU, ReLU and tanh.

Dropout with a given mask is one as well, and its gradient has the same equation.
"""

from typing import Any, ClassVar

import numpy as np
from scipy.special import erfc, expit

from conformance.model.activations import rate_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured, as_array
from conformance.numerics.functions import SIGMOID_FACTOR, TANH_CUBIC, TANH_OUTER, gelu_argument
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.linear_maps import LinearMap, Roundings, diagonal
from conformance.oracle.program import constants, either, erf, together
from conformance.oracle.step import ProgramStep, Step, elementwise_roundings


def gated(x: Array, gate: Array) -> Array:
    """Return x/2 · (1 + g), the form of both GELUs; g is an erf or a tanh."""
    return as_array(x * 0.5 * (1.0 + gate))


def gelu_tanh(x: Array, outer: float = TANH_OUTER, cubic: float = TANH_CUBIC) -> Array:
    """Return x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))), GELU's tanh approximation, or the same with other constants."""
    return gated(x, np.tanh(gelu_argument(x, outer, cubic)))


def silu(x: Array, factor: float = 1.0) -> Array:
    """Return x σ(k x)."""
    return as_array(x * expit(factor * x))


class Pointwise(ProgramStep):
    """A function applied to each element of one parent."""

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return self.trace.result.value

    @property
    def slope(self) -> Array:
        """The derivative f′(x)."""
        return as_array(self.trace.effect(self._operands[0]).diagonal)

    def effect_of(self, *errors: Captured) -> Captured:
        """Return f'(x) e if e is so small that the next term, at most e², is below 2^-12 of e; otherwise the exact difference."""
        (e,) = errors
        return self.slope * e if max(e.max(initial=0.0), -e.min(initial=0.0)) < 2.0**-12 else super().effect_of(e)

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of rounding the result; a library may compute the function in a wider format than it stores."""
        return arithmetic.storage.rounding_variance(self.value)


class Gelu(Pointwise, kinds=("gelu",)):
    """y = x/2 · (1 + erf(x/√2)); Hendrycks and Gimpel 2016, section 2."""

    fused, followed = "gelu", True

    def program(self, *parents: Any) -> Any:
        """Return the result; 1 + erf may be erfc, which is exact to half-precision formats."""
        (x,), half = parents, parents[0] * 0.5
        t = either(x, lambda: x / 2.0**0.5, also=(lambda: x * constants(x, 0.5**0.5)[0], lambda: x / constants(x, 2.0**0.5)[0]))
        gate = erf(t)
        return either(
            x,
            lambda: half * (1.0 + gate),
            also=(lambda: half + half * gate, lambda: half * erfc(-t), lambda: x * (1.0 - erfc(t) * 0.5)),
        )

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the last product and of the rounding to storage, and the bound of a fused kernel's erf.

        Since ulp > u |y|, the variance of the latter is above u² y²/12. That is half of the mean, and less than the product's own.
        """
        u2, variance = arithmetic.elementwise_format.unit_roundoff**2, np.square(self.value)
        if arithmetic.is_mixed:
            variance *= u2 / 3.0
            variance += self.stored_variance(arithmetic)
        else:
            variance *= u2 / 3.0 + u2 / 12.0
            np.maximum(variance, arithmetic.storage.floor_variance, out=variance)
        half = arithmetic.functions.absolute("gelu", arithmetic.accumulate) / 2.0
        return elementwise_roundings(variance, half * np.abs(self.parents[0]))


class Silu(Pointwise):
    """y = x σ(k x), k = 1."""

    followed = True
    factor: ClassVar[float] = 1.0

    def program(self, *parents: Any) -> Any:
        """Return the result."""
        (x,) = parents
        return x * expit(x if self.factor == 1.0 else x * constants(x, self.factor)[0])


class QuickGelu(Silu):
    """y = x σ(1.702 x); Hendrycks and Gimpel 2016, section 2."""

    factor: ClassVar[float] = SIGMOID_FACTOR


class GeluTanh(Pointwise, kinds=("gelu_new", "gelu_pytorch_tanh")):
    """y = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    fused, followed = "gelu_tanh", True

    def program(self, *parents: Any) -> Any:
        """Return the result; x may be factored out of the argument of tanh, and x³ be a single operation."""
        (x,) = parents
        c, k = constants(x, TANH_OUTER, TANH_CUBIC)
        t = either(
            x,
            lambda: c * (x + k * (x * x * x)),
            lambda: c * x * (1.0 + k * (x * x)),
            also=(
                lambda: c * (x + k * together(lambda x: x * x * x, x)),
                lambda: c * (x + k * (x * x) * x),
                lambda: c * x * (1.0 + k * (x * x)),
                lambda: c * x * (1.0 + k * x * x),
            ),
        )
        return x * 0.5 * (1.0 + np.tanh(t))


class Relu(Pointwise, kinds=("relu",)):
    """y = max(x, 0)."""

    def program(self, *parents: Any) -> Any:
        """Return the result."""
        return np.maximum(parents[0], 0.0)

    def effect_of(self, *errors: Captured) -> Captured:
        """Return the exact difference, since the slope at x does not account for the kink at 0."""
        return Step.effect_of(self, *errors)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return all errors of x for x above −`LARGEST_DEVIATION` deviations, and none below: an error may move x across 0."""
        if not errors.any:
            return errors
        variance = errors.variance
        return CorrelatedErrors(np.where(self.parents[parent] > -LARGEST_DEVIATION * np.sqrt(variance), variance, 0.0))


class Tanh(Pointwise, kinds=("tanh",)):
    """y = tanh(x)."""

    def program(self, *parents: Any) -> Any:
        """Return the result."""
        return np.tanh(parents[0])

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of rounding the result, which the program counts if every operation rounds."""
        return 0.0 if arithmetic.rounds_inside else super().stored_variance(arithmetic)


class Dropout(Step, kinds=("dropout", "dropout_backward")):
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
