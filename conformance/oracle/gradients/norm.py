"""Gradients of LayerNorm with respect to the sum that it normalizes, and to its weight."""

from functools import reduce

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.embeddings import sum_variance
from conformance.oracle.gradients.sums import over_tokens, summation_variance
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.norm import Norm, row_mean
from conformance.oracle.step import Step


class _GradientOfNorm(Step):
    """A gradient computed from w = ∂L/∂y and the terms of the normalized sum x; z, r, μ and σ² are as in `oracle.norm.Norm`."""

    @cached_property
    def norm(self) -> Norm:
        """The forward step."""
        return Norm(self.site, *self.parents[1:])

    def _statistics_variance(self, arithmetic: Arithmetic) -> tuple[Array, Array]:
        """Return the variance of the mean and the relative variance of r, both saved in the forward pass and rounded to storage."""
        of_mean, of_inverse = self.norm.statistics_variance(arithmetic)
        saved = arithmetic.call_rounding_variance
        return of_mean + saved(self.norm.mean), of_inverse + saved(self.norm.inverse) / self.norm.inverse**2

    def _sum_source(self, arithmetic: Arithmetic, jacobian: LinearMap) -> tuple[Source, ...]:
        """Return the rounding error of the sum x, for the result's Jacobian ∂/∂x; empty if x has a single term."""
        terms = self.parents[1:]
        return (Source(sum_variance(terms, arithmetic), jacobian),) if len(terms) > 1 else ()


class NormBackward(_GradientOfNorm):
    """∂L/∂x = r (g − a − z b) with g = γ w, a = mean(g) and b = mean(z g) over the features; the same for each term of the sum x.

    Shapes: w, terms and result (..., H).
    """

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """The upstream gradient times γ, g (..., H), and the means a and b (..., 1)."""
        g = self.site.parameters["weight"] * self.parents[0]
        return g, row_mean(g), row_mean(self.norm.normal * g)

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (..., H)."""
        g, a, b = self.parts
        return as_array(self.norm.inverse * (g - a - self.norm.normal * b))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂/∂w, which is the transposed forward Jacobian, and ∂/∂x for each term."""
        gamma, symmetric = self.site.parameters["weight"], self.norm.normal_jacobian  # ∂z/∂x
        of_upstream = LinearMap(lambda v: symmetric.variance(gamma**2 * v), lambda u: gamma * symmetric.adjoint(u))
        return (of_upstream, *(self._sum_jacobian for _ in self.parents[1:]))

    @cached_property
    def _sum_jacobian(self) -> LinearMap:
        """∂y_i/∂x_j = r² (−b δ_ij + (A_i + B_i z_j + C_i g_j)/n), A = b + z a, B = 2 z b − y/r, C = −z.

        It follows from δr = −r² mean(z δx) and δz = r (δx − mean(δx) − z mean(z δx)).
        """
        (g, a, b), z, r = self.parts, self.norm.normal, self.norm.inverse
        of_ones, of_z, of_g = b + z * a, 2.0 * z * b - self.value / r, -z  # A, B and C: the coefficients of 1, z_j and g_j
        n = z.shape[-1]

        def row_sum(x: Array) -> Array:
            return as_array(x.sum(-1, keepdims=True))

        def variance(v: Array) -> Array:
            diagonal = b**2 - 2.0 * b * (of_ones + of_z * z + of_g * g) / n
            squares = of_ones**2 * row_sum(v) + of_z**2 * row_sum(z**2 * v) + of_g**2 * row_sum(g**2 * v)
            mixed = of_ones * of_z * row_sum(z * v) + of_ones * of_g * row_sum(g * v) + of_z * of_g * row_sum(z * g * v)
            return as_array(r**4 * np.maximum(diagonal * v + (squares + 2.0 * mixed) / n**2, 0.0))

        def adjoint(u: Array) -> Array:
            shared = row_sum(u * of_ones) + z * row_sum(u * of_z) + g * row_sum(u * of_g)
            return as_array(r**2 * (shared / n - b * u))

        return LinearMap(variance, adjoint)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the independent kinds of error.

        u² and a² denote the variance of one rounding, /3, of the inner operations and of accumulation; mean(g) is written out.

        - The sum x, propagated through ∂/∂x; the error of the saved mean, multiplied by r² (z mean(g) + b); the relative error of
          the saved r, multiplied by y − 2 r z b.
        - mean(g), one error per row: a² Σ s_k²/n² + u² mean(g)² for the partial sums s_k of g, multiplied by r; and by r² z μ if
          the kernel computes b from Σ g x − μ Σ g, as torch's does.
        - b, one error per row: a² (Σ s_k² + Σ (g x)²)/n² for the partial sums s_k of g x, multiplied by r² z; and u² b², multiplied
          by r z.
        - Elementwise: u² times the squares of r g three times (two products, one sum), of r z b three times, of r mean(g) twice and
          of y once; a² times what a variance in one pass adds (`_in_one_pass`), for the shift for which it is largest; then the
          rounding to storage. torch's kernel also forms r² b x and r² b μ, as with a shift of 0.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        (g, a, b), z, r, x, mean = self.parts, self.norm.normal, self.norm.inverse, self.norm.summed, self.norm.mean
        n, y = z.shape[-1], self.value
        of_mean, of_inverse = self._statistics_variance(arithmetic)
        of_a = a2 * squared_partial_sums(g) / n**2 + u2 * a**2
        products = g * x
        of_b = a2 * (squared_partial_sums(products) + (products**2).sum(-1, keepdims=True)) / n**2
        squares = 3.0 * (r * g) ** 2 + 3.0 * (r * z * b) ** 2 + 2.0 * (r * a) ** 2 + y**2
        (unshifted, _), (from_first, of_first), (from_last, of_last) = (self._in_one_pass(k) for k in self.norm.shifts)
        elementwise = u2 * squares + a2 * reduce(np.maximum, (unshifted, from_first, from_last))
        elementwise += arithmetic.storage_rounding_variance(y)
        elementwise[..., :1] += a2 * of_first
        elementwise[..., -1:] += a2 * of_last
        return Roundings(
            (
                Source(of_mean, shared_by_row(r**2 * (z * a + b))),
                Source(of_inverse, shared_by_row(y - 2.0 * r * z * b)),
                Source(of_a, shared_by_row(np.broadcast_to(r, z.shape))),
                Source(of_a, shared_by_row(r**2 * mean * z)),
                Source(of_b, shared_by_row(r**2 * z)),
                Source(u2 * b**2, shared_by_row(r * z)),
                Source(np.maximum(elementwise, arithmetic.storage.floor_variance), identity()),
                *self._sum_source(arithmetic, self._sum_jacobian),
            )
        )

    def _in_one_pass(self, shift: Array) -> tuple[Array, Array]:
        """Return what is rounded, squared, if σ² = mean(d²) − m² for d = x − k and m = mean(d) is differentiated step by step.

        With c = r² b the gradient is y = r g + A − c d, where A = c m − r a is equal in the whole row.

        - In each element, (..., H): c d four times (subtraction of k, division by n, product, sum), c m once (product) and A twice
          (sum, division by n).
        - In x_j if the shift is k = x_j, in addition, (..., 1): it receives minus the sum of all elements, which is 0 but for their
          errors. Over the row: r g and c d three times and y once. n times as large, because the whole row shares them: c m three
          times (product, division of c d by n, rounding of m) and A twice. And the partial sums: of r g twice, for A and for x_j;
          of c d twice, for m and for x_j; and of n numbers A, the squares of which add up to A² n (n + 1)(2n + 1)/6.
        """
        (g, a, b), r, d, m = self.parts, self.norm.inverse, self.norm.summed - shift, self.norm.mean - shift
        c, n = r**2 * b, d.shape[-1]
        row = c * m - r * a
        each = 4.0 * (c * d) ** 2 + (c * m) ** 2 + 2.0 * row**2
        over_row = 3.0 * (r * g) ** 2 + 3.0 * (c * d) ** 2 + self.value**2
        sums = 2.0 * squared_partial_sums(r * g) + 2.0 * squared_partial_sums(c * d) + row**2 * (n * (n + 1) * (2 * n + 1) / 6.0)
        return each, sums + n**2 * (3.0 * (c * m) ** 2 + 2.0 * row**2) + over_row.sum(-1, keepdims=True)


class NormGradient(_GradientOfNorm):
    """∂L/∂γ = Σ z w over all tokens; w and terms (..., H), result (H,)."""

    couples_positions = True

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂γ, (H,)."""
        z = self.norm.normal
        return as_array((z * self.parents[0]).reshape(-1, z.shape[-1]).sum(0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂/∂w, a sum over tokens weighted by z, and ∂/∂x for each term, the sum of ∂z/∂x weighted by w."""
        w, z, normal_jacobian = self.parents[0], self.norm.normal, self.norm.normal_jacobian
        tokens = over_tokens(w.shape)
        of_upstream = LinearMap(lambda v: tokens.variance(z**2 * v), lambda u: z * u)
        of_sum = LinearMap(lambda v: tokens.variance(w**2 * normal_jacobian.variance(v)), lambda u: normal_jacobian.adjoint(w * u))
        return (of_upstream, *(of_sum for _ in self.parents[1:]))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the independent kinds of error, with the notation of `NormBackward.roundings`.

        - The sum x, propagated through ∂/∂x.
        - The mean, whose error changes a token's z w by −r w; and r, whose relative error is multiplied by z w.
        - Elementwise: u² times three times the square of z w, and a² times the squares of x r w and μ r w.
        - The sum over tokens.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        w, z, r = self.parents[0], self.norm.normal, self.norm.inverse
        of_mean, of_inverse = self._statistics_variance(arithmetic)
        tokens, products = over_tokens(w.shape), z * w
        elementwise = 3.0 * u2 * products**2 + a2 * (r * w) ** 2 * (self.norm.summed**2 + self.norm.mean**2)
        return Roundings(
            (
                Source(summation_variance(products.reshape(-1, w.shape[-1]), arithmetic), identity()),
                Source(of_mean, _after(shared_by_row(r * w), tokens)),
                Source(of_inverse, _after(shared_by_row(products), tokens)),
                Source(elementwise, tokens),
                *self._sum_source(arithmetic, self.jacobians()[-1]),
            )
        )


def _after(first: LinearMap, second: LinearMap) -> LinearMap:
    """Return the composition of two maps; the result of the first must be independent along the axes that the second sums over."""
    return LinearMap(lambda v: second.variance(first.variance(v)), lambda u: first.adjoint(second.adjoint(u)))
