"""Gradients of pooling and normalization with respect to their input."""

import math
from typing import Any

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.pooling import WEIGHTED, Maximum, Weighted, length_of
from conformance.oracle.program import call
from conformance.oracle.step import ProgramStep, elementwise_roundings


class WeightedBackward(Weighted, kinds=tuple(f"{pooling}_backward" for pooling in WEIGHTED)):
    """∂L/∂x_s = a_s w for w (B, H) and the weights a of the pooling; result (B, S, H)."""

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (B, S, H)."""
        return as_array(self.weights[:, :, None] * self.parents[0][:, None, :])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return a_s."""
        a = self.weights
        return (LinearMap(lambda v: a[:, :, None] ** 2 * v[:, None, :], lambda u: np.einsum("bs,bsh->bh", a, u)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the scaling by a, and of the rounding to storage.

        The scaling has u²/3 · y² for a division by n, and twice that for a division by √n or a weight by position. If every weight
        is 0 or 1, only the variance floor of the format remains.
        """
        is_copy = set(np.unique(self.weights)) <= {0.0, 1.0} and self.places.max() <= 1.0
        divisions = 0 if is_copy else 1 + ("sqrt" in self.site.activation.kind or self.is_by_place)
        u2 = divisions * arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        own = u2 * self.value**2 + arithmetic.storage_rounding_variance(self.value) * bool(divisions)
        return elementwise_roundings(np.maximum(own, arithmetic.storage.floor_variance))


class MaximumBackward(Maximum, kinds=("pooling-max_backward",)):
    """∂L/∂x_sh = w_h/n at each of the n largest x_sh over attended tokens s, 0 elsewhere; w (B, H), x and result (B, S, H).

    If n > 1, the gradient is any convex combination of those of the largest elements (Clarke 1990, *Optimization and Nonsmooth
    Analysis*, proposition 2.3.12): `amax` of torch divides w among them, and `max` of torch gives it to one. Such elements occur in
    half formats, whose numbers are few.
    """

    @cached_property
    def _largest(self) -> Array:
        """Where x is as large as the largest, (B, S, H): 1 or 0."""
        x = self.parents[1]
        return as_array(self.site.batch.mask[:, :, None] * (x == (self.chosen * x).sum(1, keepdims=True)), np.float64)

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (B, S, H)."""
        return as_array(self._largest / np.maximum(self._largest.sum(1, keepdims=True), 1.0) * self.parents[0][:, None, :])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return 1/n at the largest elements by w; by x, a map that majorizes the change of the gradient.

        The gradient is constant in x until the error e of the difference of two elements exceeds the difference d and makes the
        other element the largest. The gradient of both then changes by |w|, which is at most |w e|/d, so that its variance is at
        most w² min(1, Var(e)/d²); it is 0 for a difference of more than `LARGEST_DEVIATION` deviations of e.
        """
        w = self.parents[0]
        share = self._largest / np.maximum(self._largest.sum(1, keepdims=True), 1.0)
        slope = np.abs(w[:, None, :]) / self._difference
        return (
            LinearMap(lambda v: share**2 * v[:, None, :], lambda u: (share * u).sum(1)),
            LinearMap(lambda v: self._of_change(v), lambda u: math.sqrt(2.0) * slope * u),
        )

    @cached_property
    def _rivals(self) -> tuple[Ids, Ids]:
        """The tokens of the largest elements and of the largest others, (B, 1, H) each."""
        others = np.where(self.site.batch.mask[:, :, None] & (self.chosen == 0.0), self.parents[1], -np.inf)
        return self.chosen.argmax(1)[:, None], others.argmax(1)[:, None]

    def _of_rival(self, x: Array) -> Array:
        """Return the array (B, S, H) at the largest other element of each element's feature."""
        first, second = (np.take_along_axis(x, tokens, 1) for tokens in self._rivals)
        return np.where(self.chosen > 0.0, second, first)

    @cached_property
    def _difference(self) -> Array:
        """The difference d between each element and the largest other one, (B, S, H); infinite at padding and at equal elements."""
        x, mask = self.parents[1], self.site.batch.mask
        difference = np.abs(x - self._of_rival(x))
        has_rival = mask[:, :, None] & (mask.sum(1) > 1)[:, None, None]
        return np.where(has_rival & (difference > 0.0), difference, np.inf)

    def _of_change(self, v: Array) -> Array:
        """Return the variance of the change of the gradient for the variance v of x."""
        ratio = (v + self._of_rival(v)) / self._difference**2
        return self.parents[0][:, None, :] ** 2 * np.where(ratio > LARGEST_DEVIATION**-2.0, np.minimum(ratio, 1.0), 0.0)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors at equal largest elements: a bound |w| (1 − 1/n), and the roundings of w/n, u²/3 · y² and to storage.

        At all other elements the gradient is a copy, and only the variance floor of the format remains.
        """
        n, y = self._largest * self._largest.sum(1, keepdims=True), self.value
        own = (n > 1.0) * (arithmetic.elementwise_format.unit_roundoff**2 / 3.0 * y**2 + arithmetic.storage_rounding_variance(y))
        return elementwise_roundings(np.maximum(own, arithmetic.storage.floor_variance), (np.maximum(n, 1.0) - 1.0) * np.abs(y))


class UnitBackward(ProgramStep, kinds=("unit_backward",)):
    """∂L/∂x = (w − y (y · w)) / |x| with y = x / |x| for each row; w, x and result (B, H)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient, each quotient and product of which may be stored."""
        w, x = parents
        length = length_of(x)
        y, first = call(x / length), call(w / length)
        along = call(call(first * y).sum(-1, keepdims=True))
        return first - call(y * along)
