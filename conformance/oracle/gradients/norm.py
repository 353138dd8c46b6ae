"""Gradients of a norm: with respect to the sum that it normalises, and to its scale."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import sum_variance
from conformance.oracle.gradients.sums import kernel_summation_variance, over_tokens
from conformance.oracle.maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.norm import Norm
from conformance.oracle.step import Step


class _OfNorm(Step):
    """A step of w and of the terms of the sum x that was normalised; z, r, μ and σ² as in `oracle.norm.Norm`."""

    @cached_property
    def norm(self) -> Norm:
        """The forward step."""
        return Norm(self.site, *self.parents[1:])

    def _statistics(self, arithmetic: Arithmetic) -> tuple[Array, Array]:
        """Variance of the mean, and relative variance of r, as a kernel has kept them from the forward pass: rounded to storage."""
        mean, inverse = self.norm.statistics_variance(arithmetic)
        call = arithmetic.call_variance
        return mean + call(self.norm.mean), inverse + call(self.norm.inverse) / self.norm.inverse**2

    def _of_sum(self, arithmetic: Arithmetic, jacobian: LinearMap) -> tuple[Source, ...]:
        terms = self.parents[1:]
        return (Source(sum_variance(terms, arithmetic), jacobian),) if len(terms) > 1 else ()


class NormBackward(_OfNorm):
    """∂L/∂x = r (g − a − z b), g = γ w, a = mean(g) and b = mean(z g) over the features; the same for each term of the sum.

    Shapes: w, terms and result (..., H).
    """

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """g, a, b."""
        g = self.site.parameters["weight"] * self.parents[0]
        return g, g.mean(-1, keepdims=True), (self.norm.normal * g).mean(-1, keepdims=True)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        g, a, b = self.parts
        return np.asarray(self.norm.inverse * (g - a - self.norm.normal * b))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂/∂w, which is the forward Jacobian transposed, and ∂/∂x."""
        gamma, inner = self.site.parameters["weight"], self.norm.normal_jacobian  # of z, symmetric
        of_upstream = LinearMap(lambda v: inner.variance(gamma**2 * v), lambda u: gamma * inner.adjoint(u))
        return (of_upstream, *(self._of_inputs for _ in self.parents[1:]))

    @cached_property
    def _of_inputs(self) -> LinearMap:
        """∂y_i/∂x_j = r² (−b δ_ij + (A_i + B_i z_j + C_i g_j)/n), A = b + z a, B = 2 z b − y/r, C = −z.

        From δr = −r² mean(z δx) and δz = r (δx − mean(δx) − z mean(z δx)).
        """
        (g, a, b), z, r = self.parts, self.norm.normal, self.norm.inverse
        first, second, third = b + z * a, 2.0 * z * b - self.value / r, -z
        n = z.shape[-1]

        def total(x: Array) -> Array:
            return np.asarray(x.sum(-1, keepdims=True))

        def variance(v: Array) -> Array:
            own = b**2 - 2.0 * b * (first + second * z + third * g) / n
            squares = first**2 * total(v) + second**2 * total(z**2 * v) + third**2 * total(g**2 * v)
            mixed = first * second * total(z * v) + first * third * total(g * v) + second * third * total(z * g * v)
            return np.asarray(r**4 * np.maximum(own * v + (squares + 2.0 * mixed) / n**2, 0.0))

        def adjoint(u: Array) -> Array:
            shared = total(u * first) + z * total(u * second) + g * total(u * third)
            return np.asarray(r**2 * (shared / n - b * u))

        return LinearMap(variance, adjoint)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Independent kinds of error; u is the inner operations' unit roundoff, a the accumulation's (a² and u² as variances, /3).

        - the sum x, through ∂/∂x; the mean that was kept, r² (z a + b) an error; r that was kept, y − 2 r z b its relative error;
        - a, one error a row: a² Σ s_k²/n² + u² a² for partial sums s_k of g, moving y by r; and by r² z μ where the kernel takes b
          from Σ g x − μ Σ g, as torch's does;
        - b, one a row: a² (Σ s_k² + Σ (g x)²)/n² for partial sums of g x, moving y by r² z; and u² b², by r z;
        - elementwise, u² times the squares of r g thrice (two products, one sum), r z b thrice, r a twice and y once; a² times
          twice those of r² b x and r² b μ, which that kernel forms in place of r z b; then the store.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        (g, a, b), z, r, x, mean = self.parts, self.norm.normal, self.norm.inverse, self.norm.summed, self.norm.mean
        n, y = z.shape[-1], self.value
        of_mean, of_inverse = self._statistics(arithmetic)
        of_first = a2 * (np.cumsum(g, -1) ** 2).sum(-1, keepdims=True) / n**2 + u2 * a**2
        products = g * x
        raw = a2 * ((np.cumsum(products, -1) ** 2).sum(-1, keepdims=True) + (products**2).sum(-1, keepdims=True)) / n**2
        inner = 3.0 * (r * g) ** 2 + 3.0 * (r * z * b) ** 2 + 2.0 * (r * a) ** 2 + y**2
        folded = 2.0 * (r**2 * b) ** 2 * (x**2 + mean**2)
        own = u2 * inner + a2 * folded + arithmetic.store_variance(y)
        return Roundings(
            (
                Source(of_mean, shared_by_row(r**2 * (z * a + b))),
                Source(of_inverse, shared_by_row(y - 2.0 * r * z * b)),
                Source(of_first, shared_by_row(np.broadcast_to(r, z.shape))),
                Source(of_first, shared_by_row(r**2 * mean * z)),
                Source(raw, shared_by_row(r**2 * z)),
                Source(u2 * b**2, shared_by_row(r * z)),
                Source(np.maximum(own, arithmetic.storage.floor_variance), identity()),
                *self._of_sum(arithmetic, self._of_inputs),
            )
        )


class NormGradient(_OfNorm):
    """∂L/∂γ = Σ z w over all tokens; w and terms (..., H), result (H,)."""

    couples_positions = True

    @cached_property
    def value(self) -> Array:
        """The equation."""
        z = self.norm.normal
        return np.asarray((z * self.parents[0]).reshape(-1, z.shape[-1]).sum(0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂/∂w, a sum weighted by z; and ∂/∂x, that of z weighted by w."""
        w, z, inner = self.parents[0], self.norm.normal, self.norm.normal_jacobian
        tokens = over_tokens(w.shape)
        of_upstream = LinearMap(lambda v: tokens.variance(z**2 * v), lambda u: z * u)
        of_inputs = LinearMap(lambda v: tokens.variance(w**2 * inner.variance(v)), lambda u: inner.adjoint(w * u))
        return (of_upstream, *(of_inputs for _ in self.parents[1:]))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As for `NormBackward`.

        The sum x; the mean, moving a token's z w by −r w, and r, by z w times its relative error; elementwise u² times thrice the
        square of z w, and a² times those of x r w and μ r w; then the sum over tokens.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        w, z, r = self.parents[0], self.norm.normal, self.norm.inverse
        of_mean, of_inverse = self._statistics(arithmetic)
        tokens, terms = over_tokens(w.shape), z * w
        own = 3.0 * u2 * terms**2 + a2 * (r * w) ** 2 * (self.norm.summed**2 + self.norm.mean**2)
        return Roundings(
            (
                Source(kernel_summation_variance(terms.reshape(-1, w.shape[-1]), arithmetic), identity()),
                Source(of_mean, _after(shared_by_row(r * w), tokens)),
                Source(of_inverse, _after(shared_by_row(terms), tokens)),
                Source(own, tokens),
                *self._of_sum(arithmetic, self.jacobians()[-1]),
            )
        )


def _after(first: LinearMap, second: LinearMap) -> LinearMap:
    """One map after the other, where the first's result has independent elements in the axes that the second sums over."""
    return LinearMap(lambda v: second.variance(first.variance(v)), lambda u: first.adjoint(second.adjoint(u)))
