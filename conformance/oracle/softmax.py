"""Softmax over the attended keys (attention probabilities), and log-softmax over classes."""

from typing import Any

import numpy as np

from conformance.model.activation import attended_keys
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.correlated_errors import CorrelatedErrors, row_mixed
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.program import either, selected, value_of
from conformance.oracle.step import ProgramStep, elementwise_roundings


def jacobian_of_softmax(p: Array) -> LinearMap:
    """Return J_ij = p_i (δ_ij − p_j), with the variance p_i² [(1 − 2 p_i) v_i + Σ_j p_j² v_j]."""

    def variance(v: Array) -> Array:
        shared = (p**2 * v).sum(-1, keepdims=True)
        return as_array(p**2 * np.maximum((1.0 - 2.0 * p) * v + shared, 0.0))

    return LinearMap(variance, lambda w: p * (w - (p * w).sum(-1, keepdims=True)))


class Probabilities(ProgramStep):
    """p_j = exp(s_j − m) / Σ_k exp(s_k − m) over unmasked keys, m their largest score; exactly 0 at masked keys. (B, h, S, S)."""

    couples_positions = True
    followed = True

    @property
    def keys(self) -> Mask:
        """The mask of attended keys, (B, 1, Q, S); Q = 1 if it is the same for every query."""
        return attended_keys(self.site.activation, self.site.batch)[:, None]

    @cached_property
    def _largest(self) -> Array:
        """The largest score m of each row, (B, h, S, 1); 0 in a row whose keys are all masked."""
        top = np.where(self.keys, self.parents[0], -np.inf).max(-1, keepdims=True)
        return np.where(np.isfinite(top), top, 0.0)

    @cached_property
    def shifted(self) -> Array:
        """The scores less the largest of their row, s − m; −∞ at masked keys."""
        return np.where(self.keys, self.parents[0], -np.inf) - self._largest

    def program(self, *parents: Any) -> Any:
        """Return the probabilities; all zeros in a row whose keys are all masked."""
        (s,), keys = parents, self.keys
        weights = selected(np.exp(selected(s - self._largest, keys)), keys)
        total = selected(weights.sum(-1, keepdims=True), as_array(keys.any(-1, keepdims=True)), 1.0)
        return either(s, lambda: weights / total, also=(lambda: weights * (1.0 / total),))

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return p_i (ε_i − Σ_j p_j ε_j) for independent errors ε of the scores: their weighted mean is shared by a row."""
        return row_mixed(self.value, -self.value, self.value, errors.variance) if errors.any else errors

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors, where u is the unit roundoff of the inner operations and a that of accumulation.

        - Elementwise, relative: (u² + a²)/3 · ln² p for the shift s − m, which is no larger, or s − m − L with L = ln Σ exp(s − m),
          and for the product with log2 e; a third of the square of exp's relative error, and u²/3 twice, for the rounding of exp
          and the division; then the rounding to storage.
        - One per row, relative: the sum, a²/3 · Σ C_k²/C² for the partial sums C_k, in either order, and u²/3 for its rounding; or,
          if p is exp(s − (m + L)), a²/3 · ((m + L)² + L²) for the rounding of L and of m + L, and a third of the square of log's
          error.
        - Bound: a · |∂p/∂τ|, the effect of a constant log2 e that is rounded, which is that of a temperature τ = 1 ± a.

        The variance floor is that of the format's smallest normal number, since hardware may flush smaller numbers to zero.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        p, functions, wide = self.value, arithmetic.functions, arithmetic.accumulate
        shift, total = np.where(self.keys, self.shifted, 0.0), self._log_total
        own = self._elementwise(arithmetic, (u2 + a2) * (shift - total) ** 2)
        of_log = a2 * ((self._largest + total) ** 2 + total**2) + functions.error("log", total, wide) ** 2 / 3.0
        shared = np.maximum(a2 * squared_partial_sums(p) + u2, of_log)
        bound = wide.unit_roundoff * np.abs(p * (shift - (p * shift).sum(-1, keepdims=True)))
        return Roundings((Source(own, identity()), Source(shared, shared_by_row(p), p)), bound)

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of exp, of the division and of the rounding to storage alone."""
        return elementwise_roundings(self._elementwise(arithmetic, 0.0))

    def _elementwise(self, arithmetic: Arithmetic, of_argument: Array | float) -> Array:
        """Return the variance of the elementwise errors, given the relative one of exp's argument."""
        relative = of_argument + arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        relative += 2.0 * arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        floor = max(arithmetic.storage.smallest_normal**2 / 3.0, arithmetic.storage.floor_variance)
        return np.maximum(self.value**2 * relative + arithmetic.storage_rounding_variance(self.value), floor)

    @cached_property
    def _log_total(self) -> Array:
        """L = ln Σ_k exp(s_k − m) of each row, (B, h, S, 1), from the largest probability."""
        return as_array(-np.log(np.maximum(self.value.max(-1, keepdims=True), np.finfo(np.float64).tiny)))


class LogSoftmax(ProgramStep):
    """l_j = x_j − m − log Σ_k exp(x_k − m) with the largest x, m; (..., C)."""

    def program(self, *parents: Any) -> Any:
        """Return the log-probabilities; a kernel may form x − (m + L), L = log Σ."""
        (x,) = parents
        top = value_of(x).max(-1, keepdims=True)
        shift = x - top
        total = np.exp(shift).sum(-1, keepdims=True)
        return shift - either(x, lambda: np.log(total), lambda: (np.log(total) + top) - top)
