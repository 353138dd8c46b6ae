"""Gradients of products: of linear layers, of attention scores and of the attention-weighted sum."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.maps import LinearMap, Roundings, Source, rows_times
from conformance.oracle.products import accumulation_variance, merge_heads, operand, partial_squares, split_heads
from conformance.oracle.step import Step, elementwise

Layout = Literal["heads", "rows", "first tokens", "as it is"]


@dataclass(frozen=True)
class Factor:
    """A factor of a product: which parent, how it is laid out as matrices, and whether these are transposed."""

    parent: int
    layout: Layout
    transposed: bool = False


class Product(Step):
    """y = c L R, where factors and result are parents laid out as matrices: a bilinear function of two parents."""

    couples_positions = True

    left: ClassVar[Factor]
    right: ClassVar[Factor]
    result: ClassVar[Layout] = "as it is"

    @property
    def scale(self) -> float:
        """c."""
        return 1.0

    def _laid_out(self, x: Array, layout: Layout) -> Array:
        match layout:
            case "heads":
                return split_heads(x, self.site.architecture.num_attention_heads)
            case "rows":
                return x.reshape(-1, x.shape[-1])
            case "first tokens":
                return x if x.ndim == 2 else x[:, 0]
            case _:
                return x

    def _factor(self, x: Array, factor: Factor) -> Array:
        matrix = self._laid_out(x, factor.layout)
        return matrix.swapaxes(-1, -2) if factor.transposed else matrix

    def _restored(self, matrix: Array, factor: Factor) -> Array:
        """The inverse of `_factor`; 0 where nothing is read."""
        x, shape = matrix.swapaxes(-1, -2) if factor.transposed else matrix, self.parents[factor.parent].shape
        if factor.layout == "heads":
            return merge_heads(x)
        if factor.layout == "first tokens" and len(shape) == 3:
            whole = np.zeros(shape)
            whole[:, 0] = x
            return whole
        return x.reshape(shape)

    def _as_result(self, matrix: Array) -> Array:
        return merge_heads(matrix) if self.result == "heads" else matrix

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        left, right = (self._factor(self.parents[f.parent], f) for f in (self.left, self.right))
        return left, right

    @cached_property
    def value(self) -> Array:
        """The equation."""
        left, right = self._factors
        return self._as_result(self.scale * left @ right)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂y/∂L = · c R and ∂y/∂R = c L ·, in the order of the parents."""
        (left, right), c = self._factors, self.scale

        def of_left(v: Array) -> Array:
            return self._as_result(c**2 * self._factor(v, self.left) @ right**2)

        def of_right(v: Array) -> Array:
            return self._as_result(c**2 * left**2 @ self._factor(v, self.right))

        def to_left(u: Array) -> Array:
            return self._restored(c * self._laid_out(u, self.result) @ right.swapaxes(-1, -2), self.left)

        def to_right(u: Array) -> Array:
            return self._restored(c * left.swapaxes(-1, -2) @ self._laid_out(u, self.result), self.right)

        maps = {self.left.parent: LinearMap(of_left, to_left), self.right.parent: LinearMap(of_right, to_right)}
        return tuple(maps[parent] for parent in sorted(maps))

    def _accumulated(self, arithmetic: Arithmetic) -> Array:
        left, right = self._factors
        squares = self._as_result(partial_squares(operand(left), operand(right))) * self.scale**2
        return accumulation_variance(squares, self.value, left.shape[-1], arithmetic)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `oracle.products` derives."""
        return elementwise(self._accumulated(arithmetic))


class LinearBackward(Step):
    """∂L/∂x = w W; w (..., O), W (O, I), result (..., I)."""

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return rows_times(self.parents[0], self.site.parameters["weight"])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Wᵀ."""
        weight = self.site.parameters["weight"]
        return (LinearMap(lambda v: rows_times(v, weight**2), lambda u: rows_times(u, weight.T)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `oracle.products` derives, accumulated over the outputs."""
        return elementwise(self._accumulated(self.value, arithmetic))

    def _accumulated(self, y: Array, arithmetic: Arithmetic) -> Array:
        w, weight = self.parents[0], self.site.parameters["weight"]
        return accumulation_variance(partial_squares(operand(w), operand(weight)), y, w.shape[-1], arithmetic)


class FirstTokenLinearBackward(LinearBackward):
    """∂L/∂x = w W at the first token, 0 elsewhere; w (B, O), result (B, S, I)."""

    couples_positions = True

    def _placed(self, first: Array) -> Array:
        whole = np.zeros((len(first), self.site.batch.length, first.shape[-1]))
        whole[:, 0] = first
        return whole

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self._placed(rows_times(self.parents[0], self.site.parameters["weight"]))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Wᵀ, at the first token."""
        (inner,) = super().jacobians()
        return (LinearMap(lambda v: self._placed(inner.variance(v)), lambda u: inner.adjoint(u[:, 0])),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of the first token; the zeros are exact, but for the format's smallest numbers."""
        own = self._placed(self._accumulated(self.value[:, 0], arithmetic))
        return elementwise(np.maximum(own, arithmetic.storage.floor_variance))


class LinearGradient(Product):
    """∂L/∂W = wᵀ x, summed over all tokens; w (..., O), x (..., I), result (O, I)."""

    left, right = Factor(0, "rows", transposed=True), Factor(1, "rows")


class FirstTokenLinearGradient(Product):
    """∂L/∂W = wᵀ x₀, x₀ the first tokens; w (B, O), x (B, S, I), result (O, I)."""

    left, right = Factor(0, "rows", transposed=True), Factor(1, "first tokens")


class _ScoresBackward(Product):
    """c = 1/√d."""

    result = "heads"

    @property
    def scale(self) -> float:
        """1/√d."""
        return float(self.site.architecture.head_size**-0.5)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The product, and the scaling of w before it, which is a call of its own.

        2u |y| bounds the effect of rounding the constant, as for the scores.
        """
        w, u = self.parents[0], arithmetic.accumulate.unit_roundoff
        scaled = u**2 / 3.0 * w**2 + arithmetic.call_variance(self.scale * w) / self.scale**2
        sources = (*elementwise(self._accumulated(arithmetic)).sources, Source(scaled, self.jacobians()[0]))
        return Roundings(sources, 2.0 * u * np.abs(self.value))


class ScoresBackwardQuery(_ScoresBackward):
    """∂L/∂q = w k / √d a head; w (B, h, S, S), k (B, S, H), result (B, S, H)."""

    left, right = Factor(0, "as it is"), Factor(1, "heads")


class ScoresBackwardKey(_ScoresBackward):
    """∂L/∂k = wᵀ q / √d a head; w (B, h, S, S), q (B, S, H), result (B, S, H)."""

    left, right = Factor(0, "as it is", transposed=True), Factor(1, "heads")


class ContextBackwardProbs(Product):
    """∂L/∂p = w vᵀ a head; w (B, S, H), v (B, S, H), result (B, h, S, S)."""

    left, right = Factor(0, "heads"), Factor(1, "heads", transposed=True)


class ContextBackwardValue(Product):
    """∂L/∂v = pᵀ w a head; w (B, S, H), p (B, h, S, S), result (B, S, H)."""

    left, right, result = Factor(1, "as it is", transposed=True), Factor(0, "heads"), "heads"
