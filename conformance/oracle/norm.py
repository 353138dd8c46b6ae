"""Residual sum and LayerNorm as one step (Ba, Kiros and Hinton 2016, equations 3 and 4)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.program import Form, added, either, in_kernel, inverse_root, row_mean, together, value_of
from conformance.oracle.step import ProgramStep, elementwise_roundings


class Normalizing(ProgramStep):
    """A step that reads the mean and the inverse deviation of a sum, or the gradient of such a step.

    Attributes:
        centred: whether μ is the mean; if not, μ = 0.
        degrees_lost: difference between the number of features and the divisor of the sum of squares.
    """

    centred: ClassVar[bool] = True
    degrees_lost: ClassVar[int] = 0

    @property
    def epsilon(self) -> float:
        """The number ε that is added to the variance."""
        return float(self.site.architecture.layer_norm_eps)

    def mean_of(self, x: Array) -> Array:
        """Return the mean of a sum x, (..., 1), perhaps from the differences to an element; 0 if it is not centred."""
        if not self.centred:
            return np.zeros_like(value_of(x)[..., :1])

        def shifted() -> Array:
            shift = _shift(value_of(x))
            return row_mean(in_kernel(x) - shift) + shift

        return either(x, lambda: row_mean(x), shifted)

    def variance_of(self, centred: Array) -> Array:
        """Return the variance, (..., 1), from the centred values."""
        return row_mean(centred * centred, self.degrees_lost)

    def variance_in_any_form(self, x: Array, centred: Array, *, also: Sequence[Form] = ()) -> Array:
        """Return the variance, (..., 1), with the largest errors of its legal forms; `also` as for `either`.

        It may be that of a single pass, mean(d²) − mean(d)² for d = x − k and a shift k: 0, or the element that is read first
        (Chan, Golub and LeVeque 1983, section 3).
        """

        def in_one_pass() -> Array:
            d = in_kernel(x) - _shift(value_of(x))
            m = row_mean(d)
            return row_mean(d * d) - m * m

        return either(x, lambda: self.variance_of(centred), *((in_one_pass,) if self._can_be_one_pass else ()), also=also)

    @property
    def _can_be_one_pass(self) -> bool:
        return self.centred and not self.degrees_lost

    def inverse_of(self, x: Array, mean: Array, centred: Array) -> Array:
        """Return r = 1/√(σ² + ε), (..., 1)."""
        of_squares = (lambda: row_mean(x * x) - mean * mean,) if self._can_be_one_pass else ()
        variance = self.variance_in_any_form(x, centred, also=(lambda: together(self._variance, x), *of_squares))
        return either(
            x,
            lambda: inverse_root(variance + self.epsilon),
            also=(
                lambda: 1.0 / np.sqrt(variance + self.epsilon),
                lambda: together(lambda x: inverse_root(self._variance(x) + self.epsilon), x),
                lambda: 1.0 / together(lambda x: np.sqrt(self._variance(x) + self.epsilon), x),
            ),
        )

    def _variance(self, x: Array) -> Array:
        return self.variance_of(self.less_mean(x, self.mean_of(x)))

    def less_mean(self, x: Array, mean: Array) -> Array:
        """Return x − μ."""
        return x - mean if self.centred else x

    def normal_of(self, x: Array, mean: Array, centred: Array, r: Array) -> Array:
        """Return z = (x − μ) r; a kernel may form x r − μ r."""
        return either(x, lambda: centred * r, *((lambda: in_kernel(x) * r - in_kernel(mean) * r,) if self.centred else ()))


def _shift(x: Array) -> Array:
    """Return, of 0 and both ends of each row, the number that is farthest from the mean, (..., 1)."""
    mean, shift = row_mean(x), np.zeros_like(x[..., :1])
    for end in (x[..., :1], x[..., -1:]):
        shift = np.where(np.abs(mean - end) > np.abs(mean - shift), end, shift)
    return shift


class Norm(Normalizing, kinds=("norm",)):
    """y = γ · (x − μ) / √(σ² + ε) + β, where x is the sum of the parents, with mean μ and biased variance σ² over the features.

    Shapes: parents (..., H), γ and β (H,), result (..., H).
    """

    followed = True

    def program(self, *parents: Any) -> Any:
        """Return the result."""
        x = added(*parents)
        mean = self.mean_of(x)
        also = (
            lambda: self._divided(x, mean),
            lambda: self._affine(together(self._normal, x)),
            lambda: self._with_stored_statistics(x),
        )
        of_right_inverse = type(self).inverse_of is Normalizing.inverse_of
        return either(x, lambda: self._multiplied(x, mean), also=also if of_right_inverse else ())

    def _affine(self, normal: Array) -> Array:
        return normal * self.site.parameters["weight"] + self.site.parameters["bias"]

    def _multiplied(self, x: Array, mean: Array) -> Array:
        """Return the result with the inverse of the deviation."""
        weight, bias, centred = self.site.parameters["weight"], self.site.parameters["bias"], self.less_mean(x, mean)
        r = self.inverse_of(x, mean, centred)

        def folded() -> Array:
            scale = r * weight
            return x * scale + (bias - mean * scale)

        return either(
            x,
            lambda: self._affine(self.normal_of(x, mean, centred, r)),
            also=(lambda: together(self._affine, centred * r), lambda: centred * weight * r + bias, folded),
        )

    def _divided(self, x: Array, mean: Array) -> Array:
        """Return the result with a division by the deviation, which may be computed by a single call."""
        weight, bias, centred = self.site.parameters["weight"], self.site.parameters["bias"], self.less_mean(x, mean)
        deviation = either(
            x,
            lambda: np.sqrt(self.variance_of(centred) + self.epsilon),
            also=(
                lambda: np.sqrt(together(self._variance, x) + self.epsilon),
                lambda: np.sqrt(row_mean(x * x, self.degrees_lost) - mean * mean + self.epsilon),
                lambda: together(lambda x: np.sqrt(self._variance(x) + self.epsilon), x),
            ),
        )
        return either(
            x,
            lambda: self._affine(centred / deviation),
            also=(lambda: together(self._affine, centred / deviation), lambda: centred * weight / deviation + bias),
        )

    def _normal(self, x: Array) -> Array:
        mean = self.mean_of(x)
        centred = self.less_mean(x, mean)
        return self.normal_of(x, mean, centred, self.inverse_of(x, mean, centred))

    def _with_stored_statistics(self, x: Array) -> Array:
        """Return γ (x − μ) ρ + β computed in float32, with μ and ρ = 1/√(σ² + ε) rounded, as torch's group norm on CUDA does."""
        mean = together(self.mean_of, x) if self.centred else self.mean_of(x)
        inverse = together(lambda x: inverse_root(self._variance(x) + self.epsilon), x)
        return together(lambda x, mean, inverse: self._affine(self.less_mean(x, mean) * inverse), x, mean, inverse)

    @cached_property
    def summed(self) -> Array:
        """The sum x of the parents, (..., H)."""
        return added(*self.parents)

    @cached_property
    def mean(self) -> Array:
        """The mean μ, (..., 1)."""
        return self.mean_of(self.summed)

    @cached_property
    def _centred(self) -> Array:
        return self.less_mean(self.summed, self.mean)

    @cached_property
    def inverse(self) -> Array:
        """The inverse standard deviation r = 1/√(σ² + ε), (..., 1)."""
        return self.inverse_of(self.summed, self.mean, self._centred)

    @cached_property
    def normal(self) -> Array:
        """The normalized values z = (x − μ) r, (..., H)."""
        return self._centred * self.inverse

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return self._affine(self.normal)

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of x r − μ r, of the product with γ and of y, and those of μ and r for sums in a random order.

        For the variance v of a row and m = μ − k, the latter are a²/3 · (m² n/3 + (m² + v)/6 + m²) and, relative to r,
        a²/3 · n/12 or more, since Σ q_k² is at least q² n/3 for the partial sums q_k of the squares. If the sum is stored, all
        errors are returned.
        """
        if arithmetic.is_mixed:
            return self.roundings(arithmetic)
        u2, n = arithmetic.accumulate.unit_roundoff**2 / 3.0, self.summed.shape[-1]
        left2, variance = np.square(self.mean - _shift(self.summed)), 1.0 / np.square(self.inverse) - self.epsilon
        of_mean = left2 * (n / 3.0 + 7.0 / 6.0) + np.maximum(variance, 0.0) / 6.0 if self.centred else 0.0
        total, term = np.square(self.normal), np.multiply(self.summed, self.inverse)
        total *= 2.0 + n / 12.0
        np.square(term, out=term)
        total += term
        total += np.square(self.mean * self.inverse) + of_mean * np.square(self.inverse)
        total *= np.square(self.site.parameters["weight"])
        total += np.square(self.value, out=term)
        total *= u2
        return elementwise_roundings(np.maximum(total, arithmetic.storage.floor_variance, out=total))
