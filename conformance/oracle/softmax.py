"""Softmax over the attended keys (attention probabilities), and log-softmax over classes."""

from typing import Any

import numpy as np

from conformance.model.activation import attended_keys
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.correlated_errors import CorrelatedErrors, row_mixed
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.program import either, exact, in_kernel, selected, value_of
from conformance.oracle.step import ProgramStep, elementwise_roundings

_LOG2_E = float(np.log2(np.e))


def jacobian_of_softmax(p: Array) -> LinearMap:
    """Return J_ij = p_i (δ_ij − p_j), with the variance p_i² [(1 − 2 p_i) v_i + Σ_j p_j² v_j]."""

    def variance(v: Array) -> Array:
        shared = (p**2 * v).sum(-1, keepdims=True)
        return as_array(p**2 * np.maximum((1.0 - 2.0 * p) * v + shared, 0.0))

    return LinearMap(variance, lambda w: p * (w - (p * w).sum(-1, keepdims=True)))


class Probabilities(ProgramStep):
    """p_j = exp(s_j − m) / Σ_k exp(s_k − m) over unmasked keys, m their largest score; exactly 0 at masked keys. (B, h, S, S)."""

    couples_positions = True
    followed = shares_rows = True

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
        """Return the probabilities; all zeros in a row whose keys are all masked.

        Kernels also compute exp as a power of two, with a rounded constant, and p as exp(s − (m + L)) with L = ln Σ exp(s − m). An
        error of L, or of m + L, has the effect of a relative error of Σ.
        """
        (s,), top, keys = parents, self._largest, self.keys
        shift = selected(s - top, keys)
        has_keys = as_array(keys.any(-1, keepdims=True))

        def quotient() -> Array:
            weights = selected(either(s, lambda: np.exp(shift), lambda: np.exp2(in_kernel(shift) * _LOG2_E)), keys)

            def summed() -> Array:
                return selected(weights.sum(-1, keepdims=True), has_keys, 1.0)

            total = either(s, summed, lambda: np.exp((np.log(in_kernel(exact(summed()))) + top) - top))
            return either(s, lambda: weights / total, also=(lambda: weights * (1.0 / total),))

        def of_logarithm() -> Array:
            total = selected(selected(np.exp(shift), keys).sum(-1, keepdims=True), has_keys, 1.0)
            return selected(np.exp(shift - np.log(exact(total))), keys)

        return either(s, quotient, of_logarithm)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return p_i (ε_i − Σ_j p_j ε_j) for independent errors ε of the scores: their weighted mean is shared by a row."""
        return row_mixed(self.value, -self.value, self.value, errors.variance) if errors.any else errors

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the program.

        The variance floor is that of the format's smallest normal number, since hardware may flush smaller numbers to zero.
        """
        found = super().roundings(arithmetic)
        np.maximum(found.sources[0].variance, _floor(arithmetic), out=found.sources[0].variance)
        return found

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of exp, of the division and of the rounding to storage alone."""
        relative = arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        relative += 2.0 * arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        variance = self.value**2 * relative + arithmetic.storage_rounding_variance(self.value)
        return elementwise_roundings(np.maximum(variance, _floor(arithmetic)))


def _floor(arithmetic: Arithmetic) -> float:
    return max(arithmetic.storage.smallest_normal**2 / 3.0, arithmetic.storage.floor_variance)


class LogSoftmax(ProgramStep):
    """l_j = x_j − m − log Σ_k exp(x_k − m) with the largest x, m; (..., C)."""

    def program(self, *parents: Any) -> Any:
        """Return the log-probabilities; a kernel may form x − (m + L), L = log Σ."""
        (x,) = parents
        top = value_of(x).max(-1, keepdims=True)
        shift = x - top
        total = np.exp(shift).sum(-1, keepdims=True)
        return shift - either(x, lambda: np.log(total), lambda: (np.log(total) + top) - top)
