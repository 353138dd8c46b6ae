"""Gradients of LayerNorm with respect to the sum that it normalizes, and to its weight."""

from functools import partial
from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.gradients.sums import over_tokens, summation_variance
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity
from conformance.oracle.norm import Norm, Normalizing
from conformance.oracle.program import added, call, either, in_kernel, row_mean, selected, value_of


class _GradientOfNorm(Normalizing):
    """A gradient computed from w = ∂L/∂y and the terms of the normalized sum x; z, r, μ and σ² are as in `oracle.norm.Norm`."""

    @cached_property
    def norm(self) -> Norm:
        """The forward step."""
        return Norm(self.site, *self.parents[1:])

    def saved(self, *terms: Array) -> tuple[Array, Array, Array, Array]:
        """Return x, μ as the forward pass saved it, x − μ, and the saved r."""
        x = added(*terms)
        mean = self.mean_of(x)
        r = call(self.inverse_of(x, mean, self.less_mean(x, mean)))
        mean = call(mean)
        return x, mean, self.less_mean(x, mean), r


class NormBackward(_GradientOfNorm, kinds=("norm_backward",)):
    """∂L/∂x = r (g − a − z b) with g = γ w, a = mean(g) and b = mean(z g) over the features; the same for each term of the sum x.

    Shapes: w, terms and result (..., H).
    """

    def program(self, *parents: Any) -> Any:
        """Return the gradient; it may be that of a variance in one pass, with each shift."""
        w, *terms = parents
        x, mean, centred, r = self.saved(*terms)
        z, g = self.normal_of(x, mean, centred, r), w * self.site.parameters["weight"]

        def gradient() -> Any:
            a = row_mean(g)
            b = either(x, lambda: row_mean(z * g), lambda: (row_mean(in_kernel(g) * x) - in_kernel(mean) * a) * r)
            return r * (g - a - z * b)

        places = (None, 0, -1)
        return either(x, gradient, *(partial(self._in_one_pass, x, mean, r, g, place) for place in places))

    @staticmethod
    def _in_one_pass(x: Array, mean: Array, r: Array, g: Array, place: int | None) -> Any:
        """Return the gradient by differentiating mean(d²) − mean(d)², d = x − k, operation by operation; k is 0 or x[place].

        The element that is the shift receives, in addition, minus the sum of all gradients, which is 0 but for their errors.
        """
        plain, n = value_of(x), value_of(x).shape[-1]
        shift = np.zeros_like(plain[..., :1]) if place is None else plain[..., [place]]
        d, direct = in_kernel(x) - shift, in_kernel(g) * r
        m = row_mean(d)
        of_variance = (in_kernel(g) * (x - mean)).sum(-1, keepdims=True) * (r * r * r * -0.5)
        of_mean = (-direct.sum(-1, keepdims=True) - m * of_variance) - m * of_variance
        everywhere = np.ones(plain.shape, np.bool_)
        shared, of_squares = selected(of_mean / n, everywhere), d * (of_variance / n * 2.0)
        y = direct + shared + of_squares
        if place is None:
            return y
        total = shared.sum(-1, keepdims=True) + of_squares.sum(-1, keepdims=True) + direct.sum(-1, keepdims=True)
        return y - selected(total, np.arange(n) == place % n)

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """The upstream gradient times γ, g (..., H), and the means a and b (..., 1)."""
        g = self.site.parameters["weight"] * self.parents[0]
        return g, row_mean(g), row_mean(self.norm.normal * g)


class NormGradient(_GradientOfNorm, kinds=("norm_gradient",)):
    """∂L/∂γ = Σ z w over all tokens; w and terms (..., H), result (H,)."""

    couples_positions = True

    def program(self, *parents: Any) -> Any:
        """Return the terms of the sum, z w."""
        w, *terms = parents
        return self.normal_of(*self.saved(*terms)) * w

    @cached_property
    def _products(self) -> Array:
        return as_array(self.program(*self.parents))

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂γ, (H,)."""
        return as_array(self._products.reshape(-1, self._products.shape[-1]).sum(0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the effects of errors of the parents on the terms, summed over the tokens."""
        tokens = over_tokens(self._products.shape)
        return tuple(_after(jacobian, tokens) for jacobian in super().jacobians())

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the terms, summed over the tokens, and those of the sum."""
        own, others = self.trace.sources(arithmetic)
        tokens, rows = over_tokens(self._products.shape), self._products.reshape(-1, self._products.shape[-1])
        of_terms = (Source(s.variance, _after(s.to_result, tokens)) for s in others)
        return Roundings((Source(summation_variance(rows, arithmetic), identity()), Source(as_array(own), tokens), *of_terms))


def _after(first: LinearMap, second: LinearMap) -> LinearMap:
    """Return the composition of two maps; the result of the first must be independent along the axes that the second sums over."""
    return LinearMap(lambda v: second.variance(first.variance(v)), lambda u: first.adjoint(second.adjoint(u)))
