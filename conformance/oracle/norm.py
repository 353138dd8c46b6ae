"""Residual sum and LayerNorm as one step (Ba, Kiros and Hinton 2016, equations 3 and 4)."""

from functools import reduce
from typing import ClassVar

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.embeddings import sum_variance
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.step import Step, elementwise_roundings


def row_mean(x: Array) -> Array:
    """Return the mean over the last axis, (..., 1), with the bits of `numpy.mean` and without the time it spends before the sum."""
    return as_array(np.add.reduce(x, -1, keepdims=True) / x.shape[-1])


class Norm(Step):
    """y = γ · (x − μ) / √(σ² + ε) + β, where x is the sum of the parents, with mean μ and biased variance σ² over the features.

    Shapes: parents (..., H), γ and β (H,), result (..., H).

    Attributes:
        centred: whether μ is the mean; if not, μ = 0.
        degrees_lost: difference between the number of features and the divisor of the sum of squares.
    """

    centred: ClassVar[bool] = True
    degrees_lost: ClassVar[int] = 0

    @cached_property
    def summed(self) -> Array:
        """The sum x of the parents, (..., H)."""
        return as_array(sum(self.parents[1:], start=self.parents[0]))

    @cached_property
    def mean(self) -> Array:
        """The mean μ, (..., 1)."""
        return self.mean_of(self.summed)

    @classmethod
    def mean_of(cls, x: Array) -> Array:
        """Return the mean of a sum x, (..., 1); 0 if the norm is not centred."""
        mean = row_mean(x)
        return as_array(mean if cls.centred else np.zeros_like(mean))

    @classmethod
    def variance_of(cls, squares: Array) -> Array:
        """Return the variance, (..., 1), from the squares of the centred values."""
        return as_array(squares.sum(-1, keepdims=True) / (squares.shape[-1] - cls.degrees_lost))

    @cached_property
    def inverse(self) -> Array:
        """The inverse standard deviation r = 1/√(σ² + ε), (..., 1)."""
        variance = self.variance_of(np.square(self._shifted))
        return as_array(1.0 / np.sqrt(variance + self.site.architecture.layer_norm_eps))

    @cached_property
    def _shifted(self) -> Array:
        """x − μ, (..., H)."""
        return self.summed - self.mean

    @cached_property
    def normal(self) -> Array:
        """The normalized values z = (x − μ) r, (..., H)."""
        return self._shifted * self.inverse

    @cached_property
    def value(self) -> Array:
        """The result y."""
        result = self.site.parameters["weight"] * self.normal
        result += self.site.parameters["bias"]
        return result

    @cached_property
    def normal_jacobian(self) -> LinearMap:
        """∂z_i/∂x_j = r (δ_ij − (1 + z_i z_j)/n), with r = 1/√(σ² + ε) and the normalized input z.

        The variance of the result needs only Σv, Σzv and Σz²v of a row:
        r² [v_i (1 − 2(1 + z_i²)/n) + (Σv + 2 z_i Σzv + z_i² Σz²v)/n²].
        """
        z, r = self.normal, self.inverse
        n = z.shape[-1]

        def variance(v: Array) -> Array:
            total, first, second = (np.sum(m, -1, keepdims=True) for m in (v, z * v, z**2 * v))
            spread = v * (1.0 - 2.0 * (1.0 + z**2) / n) + (total + 2.0 * z * first + z**2 * second) / n**2
            return as_array(r**2 * np.maximum(spread, 0.0))

        def adjoint(w: Array) -> Array:
            return as_array(r * (w - row_mean(w) - z * row_mean(z * w)))

        return LinearMap(variance, adjoint)

    @cached_property
    def _jacobian(self) -> LinearMap:
        """γ ∂z/∂x."""
        return self.normal_jacobian.then_times(self.site.parameters["weight"])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return γ ∂z/∂x for every parent; it is the same for all of them, since the parents are summed first."""
        return (self._jacobian,) * len(self.parents)

    def statistics_variance(self, arithmetic: Arithmetic) -> tuple[Array, Array]:
        """Return the variance of the mean's error and of r's relative error, (..., 1) each, as derived in `roundings`."""
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        x, mean, n = self.summed, self.mean, self.summed.shape[-1]
        centred = np.square(self._shifted)
        power = np.maximum(centred.sum(-1, keepdims=True) ** 2, np.finfo(np.float64).tiny)
        of_mean, share = squared_partial_sums(x) / n**2, squared_partial_sums(centred)
        if self.centred:
            left = self._largest_shift
            shifted = self._shifted + left
            squares, of_rest = shifted**2, squared_partial_sums(shifted) / n**2 + left**2
            rounded = np.square(squares.sum(-1, keepdims=True)) + n**2 * left**4 + 4.0 * (centred * squares).sum(-1, keepdims=True)
            share = np.maximum(share, squared_partial_sums(squares) + rounded + 4.0 * n**2 * left**2 * of_rest)
            of_mean = np.maximum(of_mean, of_rest)
        root = arithmetic.functions.relative("rsqrt", arithmetic.accumulate) ** 2 / 3.0 + u2
        return a2 * of_mean + u2 * mean**2, (a2 * share / power + 3.0 * u2) / 4.0 + root

    @property
    def shifts(self) -> tuple[Array, Array, Array]:
        """The shifts k of a variance in one pass: 0, and both ends of the row, (..., 1) each."""
        return np.zeros_like(self.mean), self.summed[..., :1], self.summed[..., -1:]

    @property
    def _largest_shift(self) -> Array:
        """μ − k for the shift k that is farthest from the mean, (..., 1)."""
        return reduce(lambda m, other: np.where(np.abs(other) > np.abs(m), other, m), (self.mean - k for k in self.shifts))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return four independent kinds of error, where u is the unit roundoff of the inner operations and a that of accumulation.

        - Residual sum: `sum_variance`, propagated through the Jacobian.
        - Mean, one error per row: a²/3 · Σ s_k²/n² + u²/3 · μ², with the partial sums s_k of x.
        - Variance and inverse root, one relative error per row: a²/3 · Σ q_k²/q² / 4 for the partial sums q_k of the squares (a
          root halves relative errors), u²/3 · 3/4 for the mean of squares, the addition of ε and one product, a third of the square
          of rsqrt's relative error for the root, and u²/3 for the rounding of the root.
        - The statistics may be computed in one pass, with m = Σ d/n as μ − k and Σ d²/n − m² as σ², for d = x − k and a shift k: 0,
          or the element that is read first (Chan, Golub and LeVeque 1983, section 3). With the partial sums s_k of d and q_k of d²,
          the mean then has the error a²/3 · (Σ s_k²/n² + m²), and n σ² has, to first order,
          a²/3 · (Σ q_k² + (Σ d²)² + n² m⁴ + 4 Σ (x − μ)² d² + 4 n² m² (Σ s_k²/n² + m²)). The larger of both ways is used.
        - Elementwise: u²/3 times the squares of z twice (centring, scaling), of γ z and of y; a²/3 times the squares of x r and μ
          r, since a kernel may form x r − μ r; and the rounding to storage.
        """
        z, r, gamma = self.normal, self.inverse, self.site.parameters["weight"]
        of_mean, of_inverse = self.statistics_variance(arithmetic)
        sources = [
            Source(of_mean, shared_by_row(-gamma * r)),
            Source(of_inverse, shared_by_row(-gamma * z)),
            Source(self._elementwise(arithmetic), identity()),
        ]
        if len(self.parents) > 1:
            sources.append(Source(sum_variance(self.parents, arithmetic), self._jacobian))
        return Roundings(tuple(sources))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the elementwise errors, and those of the mean and of r for sums in a random order; all if the sum is stored.

        For the variance v of a row and m = μ − k, they are a²/3 · (m² n/3 + (m² + v)/6 + m²) and, relative to r, a²/3 · n/12 or
        more, since Σ q_k² is at least q² n/3.
        """
        if arithmetic.is_mixed:
            return self.roundings(arithmetic)
        a2, n = arithmetic.accumulate.unit_roundoff**2 / 3.0, self.summed.shape[-1]
        left2, variance = np.square(self._largest_shift), 1.0 / np.square(self.inverse) - self.site.architecture.layer_norm_eps
        of_mean = left2 * (n / 3.0 + 7.0 / 6.0) + np.maximum(variance, 0.0) / 6.0 if self.centred else 0.0
        return elementwise_roundings(self._elementwise(arithmetic, a2 * of_mean * np.square(self.inverse), a2 * n / 12.0))

    def _elementwise(self, arithmetic: Arithmetic, of_mean: Array | float = 0.0, of_inverse: float = 0.0) -> Array:
        """Return the variance of the elementwise errors of the result, and of these errors of μ r and relative errors of r."""
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        variance, term = np.square(self.normal), np.multiply(self.summed, self.inverse)
        variance *= 3.0 * u2 + of_inverse
        np.square(term, out=term)
        term *= a2
        variance += term
        variance += a2 * np.square(self.mean * self.inverse) + of_mean
        variance *= np.square(self.site.parameters["weight"])
        np.square(self.value, out=term)
        term *= u2
        variance += term
        variance += arithmetic.storage_rounding_variance(self.value)
        return np.maximum(variance, arithmetic.storage.floor_variance, out=variance)
