"""Gradients of pooling and normalization with respect to their input."""

import math

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.pooling import Maximum, Unit, Weighted
from conformance.oracle.step import Step, elementwise_roundings


class WeightedBackward(Weighted):
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


class MaximumBackward(Maximum):
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


class UnitBackward(Step):
    """∂L/∂x = (w − y (y · w)) / |x| with y = x / |x| for each row; w, x and result (B, H)."""

    @cached_property
    def unit(self) -> Unit:
        """The forward step."""
        return Unit(self.site, self.parents[1])

    @cached_property
    def along(self) -> Array:
        """The quotient c = (y · w) / |x|, (B, 1)."""
        return as_array((self.unit.value * self.parents[0]).sum(-1, keepdims=True) / self.unit.length)

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x, (B, H)."""
        return as_array(self.parents[0] / self.unit.length - self.unit.value * self.along)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobians by w and by x.

        By w it is that of `Unit`, which is symmetric; by x, with q = y · w, it is (3 q y_i y_j − w_i y_j − y_i w_j − q δ_ij) /
        |x|².
        """
        w, y, length = self.parents[0], self.unit.value, self.unit.length
        q = self.along * length

        def total(x: Array) -> Array:
            return as_array(x.sum(-1, keepdims=True))

        def variance(v: Array) -> Array:
            yy, ww, wy = total(y**2 * v), total(w**2 * v), total(w * y * v)
            mixed = (w - 3.0 * q * y) ** 2 * yy + y**2 * ww + 2.0 * y * (w - 3.0 * q * y) * wy
            own = (q**2 - 2.0 * q * (3.0 * q * y**2 - 2.0 * w * y)) * v
            return as_array(np.maximum(mixed + own, 0.0) / length**4)

        def adjoint(u: Array) -> Array:
            return as_array((3.0 * q * y * total(y * u) - y * total(w * u) - w * total(y * u) - q * u) / length**2)

        return (*self.unit.jacobians(), LinearMap(variance, adjoint))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the independent errors of w/|x| − y c, with c = (y · w)/|x|; u² and a² denote variances of one rounding, /3.

        - |x|: its relative error is multiplied by the result minus 2 y c.
        - c, one error per row, multiplied by y: a² Σ s_k² over the partial sums, 3 u² Σ t² over the terms, each with two divisions
          and a product, and the rounding of each of these to storage.
        - Elementwise: u² (w/|x|)² + 2 u² (y c)² + u² y², and the roundings to storage.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        w, y, length, c = self.parents[0], self.unit.value, self.unit.length, self.along
        terms, first, second = w * y / length, w / length, y * c
        stored = arithmetic.call_rounding_variance
        of_terms = 3.0 * (u2 * terms**2 + stored(terms)).sum(-1, keepdims=True)
        row = a2 * squared_partial_sums(terms) + of_terms + stored(c)
        own = u2 * (first**2 + 2.0 * second**2 + self.value**2) + stored(first) + 2.0 * stored(second)
        own = np.maximum(own + arithmetic.storage_rounding_variance(self.value), arithmetic.storage.floor_variance)
        return Roundings(
            (
                Source(own, identity()),
                Source(row, shared_by_row(y)),
                Source(self.unit.relative(arithmetic), shared_by_row(self.value - 2.0 * second)),
            )
        )
