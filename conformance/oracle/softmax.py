"""Softmax over the attended keys (attention probabilities), and log-softmax over classes."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from conformance.model.activation import attended_keys
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.correlated_errors import CorrelatedErrors, row_mixed
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.program import again, either, exactly, exp_by_two, in_kernel, rescaled, selected, value_of
from conformance.oracle.step import ProgramStep, elementwise_roundings

_MASKED = -1e4  # Its exponential is 0.


class Probabilities(ProgramStep, kinds=("probs",)):
    """p_j = exp(s_j − m) / Σ_k exp(s_k − m) over unmasked keys, m their largest score; exactly 0 at masked keys. (B, h, S, S)."""

    couples_positions = True
    followed = True

    @cached_property
    def keys(self) -> Mask:
        """The mask of attended keys, (B, 1, Q, S); Q = 1 if it is the same for every query."""
        return attended_keys(self.site.activation, self.site.batch)[:, None]

    @cached_property
    def _attending(self) -> Mask:
        """Whether a query attends to any key, (B, 1, Q, 1)."""
        return as_array(self.keys.any(-1, keepdims=True))

    def program(self, *parents: Any) -> Any:
        """Return the probabilities; all zeros in a row whose keys are all masked.

        With the logarithm L of the total, a kernel may form exp(s − (m + L)), as exp2 of a product with log2 e: the errors of such
        weights are no smaller than those of exp(s − m), and they are not those in the total.
        """
        s = rescaled(parents[0])
        largest = np.where(self.keys, value_of(s), -np.inf).max(-1, keepdims=True)
        top = np.where(self._attending, largest, 0.0)
        weights = self.weights_of(s, top)
        total = selected(self._total(weights, top), self._attending, 1.0)

        def from_logarithm() -> Array:
            plain = value_of(total)
            return exactly(np.multiply)(self.weights_of(s, top + np.log(plain), exp_by_two), plain)

        return either(s, lambda: again(weights, from_logarithm) / total, also=(lambda: weights * (1.0 / total),))

    def weights_of(self, s: Array, subtrahend: Array, exponential: Callable[[Array], Array] = np.exp) -> Array:
        """Return the exponential of the scores less a number for each row; 0 at masked keys."""
        return exponential(selected(s - subtrahend, self.keys, _MASKED))

    def _total(self, weights: Array, top: Array) -> Array:
        """Return the sum of the weights, with its errors or those of m + L, whichever are larger."""
        total = weights.sum(-1, keepdims=True)

        def by_logarithm() -> Array:
            shifted = np.log(in_kernel(selected(total, self._attending, 1.0))) + top
            return exactly(np.exp)(exactly(np.subtract)(shifted, top))

        return either(weights, lambda: total, by_logarithm)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return p_i (ε_i − Σ_j p_j ε_j) for independent errors ε of the scores: their weighted mean is shared by a row."""
        return row_mixed(self.value, -self.value, self.value, errors.variance) if errors.any else errors

    def floor_variance(self, arithmetic: Arithmetic) -> float:
        """Return that of the format's smallest normal number, since hardware may flush smaller numbers to zero."""
        return max(arithmetic.storage.smallest_normal**2 / 3.0, super().floor_variance(arithmetic))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of exp, of its rounding, of the division and of the rounding to storage alone."""
        relative = arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        relative += 2.0 * arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        variance = self.value**2 * relative + self.stored_variance(arithmetic)
        return elementwise_roundings(np.maximum(variance, self.floor_variance(arithmetic)))


def log_softmax(x: Array) -> Array:
    """Return l_j = x_j − m − log Σ_k exp(x_k − m) with the largest x, m; a kernel may form x − (m + L), L = log Σ."""
    top = value_of(x).max(-1, keepdims=True)
    shift = x - top
    total = np.exp(shift).sum(-1, keepdims=True)
    return cast(Array, shift - either(x, lambda: np.log(total), lambda: (np.log(total) + top) - top))


class LogSoftmax(ProgramStep, kinds=("log_softmax",)):
    """The logarithm of the softmax over the last axis, (..., C)."""

    def program(self, *parents: Any) -> Any:
        """Return the log-probabilities."""
        return log_softmax(parents[0])
