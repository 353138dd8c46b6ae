"""Residual sum and LayerNorm, one step (Ba, Kiros and Hinton 2016, equations 3 and 4)."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import sum_variance
from conformance.oracle.maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.step import Step


class Norm(Step):
    """y = γ · (x − μ) / √(σ² + ε) + β with x the sum of the parents, μ and σ² its mean and biased variance over the features.

    Shapes: parents (..., H), γ and β (H,), result (..., H).
    """

    @cached_property
    def _sum(self) -> Array:
        return np.asarray(sum(self.parents[1:], start=self.parents[0]))

    @cached_property
    def _mean(self) -> Array:
        return np.asarray(self._sum.mean(-1, keepdims=True))

    @cached_property
    def _inverse(self) -> Array:
        variance = ((self._sum - self._mean) ** 2).mean(-1, keepdims=True)
        return np.asarray(1.0 / np.sqrt(variance + self.site.architecture.layer_norm_eps))

    @cached_property
    def _normal(self) -> Array:
        return (self._sum - self._mean) * self._inverse

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self.site.parameters["weight"] * self._normal + self.site.parameters["bias"]

    @cached_property
    def _jacobian(self) -> LinearMap:
        """∂y_i/∂x_j = γ_i r (δ_ij − (1 + z_i z_j)/n), r = 1/√(σ² + ε), z the normalised input.

        Its square summed against v needs only Σv, Σzv and Σz²v of the row:
        γ_i² r² [v_i (1 − 2(1 + z_i²)/n) + (Σv + 2 z_i Σzv + z_i² Σz²v)/n²].
        """
        z, r, gamma = self._normal, self._inverse, self.site.parameters["weight"]
        n = z.shape[-1]

        def variance(v: Array) -> Array:
            total, first, second = (np.sum(m, -1, keepdims=True) for m in (v, z * v, z**2 * v))
            spread = v * (1.0 - 2.0 * (1.0 + z**2) / n) + (total + 2.0 * z * first + z**2 * second) / n**2
            return np.asarray((gamma * r) ** 2 * np.maximum(spread, 0.0))

        def adjoint(w: Array) -> Array:
            g = gamma * w
            return np.asarray(r * (g - g.mean(-1, keepdims=True) - z * (z * g).mean(-1, keepdims=True)))

        return LinearMap(variance, adjoint)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """The same for every parent: they are summed first."""
        return (self._jacobian,) * len(self.parents)

    def parameter_gradients(self, upstream: Array) -> dict[str, Array]:
        """∂L/∂γ = Σ_rows w z and ∂L/∂β = Σ_rows w, w the upstream gradient."""
        rows = tuple(range(upstream.ndim - 1))
        return {"weight": (upstream * self._normal).sum(rows), "bias": upstream.sum(rows)}

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Four independent kinds of error; u is the inner operations' unit roundoff, a the accumulation's.

        - the residual sum (`sum_variance`), through the Jacobian;
        - the mean, one error a row: a²/3 · Σ s_k²/n² + u²/3 · μ², s_k the partial sums of x;
        - variance and inverse root, one relative error a row: a²/3 · Σ q_k²/q² / 4 for partial sums q_k of the squares (a root
          halves relative errors), u²/3 · 3/4 for the mean of squares, the adding of ε and one product, a third of the square of
          rsqrt's relative error for the root and u²/3 for its rounding;
        - elementwise, u²/3 times the squares of z twice (centring, scaling), of γ z and of y; a²/3 times those of x r and μ r,
          since a kernel may form x r − μ r; then the rounding to storage.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        z, r, gamma, x, mean = self._normal, self._inverse, self.site.parameters["weight"], self._sum, self._mean
        n = x.shape[-1]
        partial = (np.cumsum(x, -1) ** 2).sum(-1, keepdims=True)
        squares = np.cumsum((x - mean) ** 2, -1)
        share = (squares**2).sum(-1, keepdims=True) / np.maximum(squares[..., -1:] ** 2, np.finfo(np.float64).tiny)
        root = arithmetic.functions.relative("rsqrt", arithmetic.accumulate) ** 2 / 3.0 + u2
        folded = a2 / u2 * ((x * r) ** 2 + (mean * r) ** 2)
        inner = gamma**2 * (folded + 3.0 * z**2) + self.value**2
        own = u2 * inner + arithmetic.store_variance(self.value)
        sources = [
            Source(a2 * partial / n**2 + u2 * mean**2, shared_by_row(-gamma * r)),
            Source((a2 * share + 3.0 * u2) / 4.0 + root, shared_by_row(-gamma * z)),
            Source(np.maximum(own, arithmetic.storage.floor_variance), identity()),
        ]
        if len(self.parents) > 1:
            sources.append(Source(sum_variance(self.parents, arithmetic), self._jacobian))
        return Roundings(tuple(sources))
