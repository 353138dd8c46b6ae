"""Attention probabilities: softmax over the keys that the mask lets through."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from conformance.numerics.arithmetic import FUNCTION_ULP, Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle.maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.step import Step


class Probabilities(Step):
    """p_j = exp(s_j − m) / Σ_k exp(s_k − m) over unmasked keys, m their largest; exactly 0 at masked keys. (B, h, S, S)."""

    @property
    def keys(self) -> npt.NDArray[np.bool_]:
        """(B, 1, 1, S): which keys may be attended to."""
        return self.site.batch.mask[:, None, None, :]

    @cached_property
    def _shifted(self) -> Array:
        s = np.where(self.keys, self.parents[0], -np.inf)
        top = s.max(-1, keepdims=True)
        return s - np.where(np.isfinite(top), top, 0.0)

    @cached_property
    def value(self) -> Array:
        """The equation; all zeros in a row whose every key is masked."""
        weights = np.exp(self._shifted)
        total = weights.sum(-1, keepdims=True)
        return np.asarray(weights / np.where(total > 0, total, 1.0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂p_i/∂s_j = p_i (δ_ij − p_j), so the variance is p_i² [(1 − 2 p_i) v_i + Σ_j p_j² v_j]."""
        p = self.value

        def variance(v: Array) -> Array:
            shared = (p**2 * v).sum(-1, keepdims=True)
            return np.asarray(p**2 * np.maximum((1.0 - 2.0 * p) * v + shared, 0.0))

        return (LinearMap(variance, lambda w: p * (w - (p * w).sum(-1, keepdims=True))),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Relative errors; u is the inner operations' unit roundoff, a the accumulation's.

        - elementwise: (u² + a²)/3 · (s − m)² for the shift and the product with log2 e, (2a · ulps of exp)²/3 for the
          exponential and u²/3 twice for its rounding and the division; then the store;
        - one a row: the sum, a²/3 · Σ C_k²/C² for partial sums C_k, and u²/3 for its rounding.

        The floor is the format's smallest normal: below it hardware may flush to zero.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        p, keys = self.value, self.keys
        shift = np.where(keys, self._shifted, 0.0)
        relative = (u2 + a2) * shift**2 + a2 * (2.0 * FUNCTION_ULP["exp"]) ** 2 + 2.0 * u2
        partial = (np.cumsum(p, -1) ** 2).sum(-1, keepdims=True)
        floor = max(arithmetic.storage.smallest_normal**2 / 3.0, arithmetic.storage.floor_variance)
        own = np.maximum(p**2 * relative + arithmetic.store_variance(p), floor)
        return Roundings((Source(own, identity()), Source(a2 * partial + u2, shared_by_row(p))))
