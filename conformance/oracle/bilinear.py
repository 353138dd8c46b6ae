"""Steps that are one matrix product of two parents, each laid out as matrices: attention's scores and context, and others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance
from conformance.oracle.carried import Errors, mixed
from conformance.oracle.maps import LinearMap, Matrix, Roundings
from conformance.oracle.step import Step, elementwise


def split_heads(x: Matrix, size: int) -> Matrix:
    """(B, S, h d) -> (B, h, S, d), d = `size`: head j is features j·d to (j+1)·d.

    A copy, since products of views are many times slower.
    """
    batch, length, width = x.shape
    return np.ascontiguousarray(x.reshape(batch, length, width // size, size).transpose(0, 2, 1, 3))


def merge_heads(x: Matrix) -> Matrix:
    """(B, h, S, d) -> (B, S, H), the inverse of `split_heads`."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


Layout = Literal["as it is", "heads", "rows", "first tokens", "by token", "by query", "by key", "distances by key"]

# How an array of a layout is brought to matrices, given the size of a head.
_MATRICES: Mapping[Layout, Callable[[Matrix, int], Matrix]] = {
    "as it is": lambda x, _: x,
    "heads": split_heads,  # (B, S, H) -> (B, h, S, d)
    "rows": lambda x, _: x.reshape(-1, x.shape[-1]),
    "first tokens": lambda x, _: x if x.ndim == 2 else x[:, 0],
    "by token": lambda x, d: x.reshape(*x.shape[:2], -1, d),  # (B, S, H) -> (B, S, h, d)
    "by query": lambda x, _: x.transpose(0, 2, 1, 3),  # (B, h, Q, K) -> (B, Q, h, K)
    "by key": lambda x, _: x.transpose(0, 3, 1, 2),  # (B, h, Q, K) -> (B, K, h, Q)
    "distances by key": lambda x, _: x.swapaxes(1, 2),  # (B, Q, K, d) -> (B, K, Q, d)
}

# And back again, where the shape alone does not say how.
_RESTORED: Mapping[Layout, Callable[[Matrix], Matrix]] = {
    "as it is": lambda x: x,
    "heads": merge_heads,
    "by token": lambda x: x.reshape(*x.shape[:2], -1),
    "by query": lambda x: x.transpose(0, 2, 1, 3),
    "by key": lambda x: x.transpose(0, 2, 3, 1),
    "distances by key": lambda x: x.swapaxes(1, 2),
}


@dataclass(frozen=True)
class Factor:
    """A factor of a product: which parent, how it is laid out as matrices, and whether these are transposed."""

    parent: int
    layout: Layout
    transposed: bool = False


class Product(Step):
    """y = c L R, where factors and result are parents laid out as matrices."""

    couples_positions = True

    left: ClassVar[Factor]
    right: ClassVar[Factor]
    result: ClassVar[Layout] = "as it is"

    @property
    def scale(self) -> float:
        """c."""
        return 1.0

    def _laid_out(self, x: Matrix, layout: Layout) -> Matrix:
        return _MATRICES[layout](x, self.site.architecture.head_size)

    def _factor(self, x: Matrix, factor: Factor) -> Matrix:
        matrix = self._laid_out(x, factor.layout)
        return matrix.swapaxes(-1, -2) if factor.transposed else matrix

    def _restored(self, matrix: Array, factor: Factor) -> Array:
        """The inverse of `_factor`; 0 where nothing is read."""
        x, shape = matrix.swapaxes(-1, -2) if factor.transposed else matrix, self.parents[factor.parent].shape
        if factor.layout in _RESTORED:
            return _RESTORED[factor.layout](x)
        if factor.layout == "first tokens" and len(shape) == 3:
            whole = np.zeros(shape)
            whole[:, 0] = x
            return whole
        return x.reshape(shape)

    def _as_result(self, matrix: Matrix) -> Matrix:
        return _RESTORED[self.result](matrix)

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        left, right = (self._factor(self.parents[f.parent], f) for f in (self.left, self.right))
        return left, right

    @cached_property
    def _accumulation(self) -> Accumulation:
        return Accumulation(*self._factors)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self._as_result(self._accumulation.product * self.scale)

    def moved_by(self, *errors: Array | Single) -> Single:
        """c (e_L R + (L − e_L) e_R), in float32: an error is a small number to begin with."""
        left, right = (x.astype(np.float32) for x in self._factors)
        e_left, e_right = (self._factor(errors[f.parent].astype(np.float32), f) for f in (self.left, self.right))
        return self._as_result(np.asarray((e_left @ right + (left - e_left) @ e_right) * np.float32(self.scale)))

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

    def through(self, parent: int, errors: Errors) -> Errors:
        """A factor that each head has for itself, as it has the result, is mixed by the other."""
        if parent == self.right.parent and self.right.layout == self.result == "heads":
            return mixed(self.scale * self._factors[0], errors, self.parents[parent])
        return super().through(parent, errors)

    def accumulated(self, arithmetic: Arithmetic) -> Array:
        """The variance of the product's own roundings, elementwise."""
        squares = self._as_result(self._accumulation.squares) * self.scale**2
        return accumulation_variance(squares, self.value, self._factors[0].shape[-1], arithmetic)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `oracle.accumulation` derives."""
        return elementwise(self.accumulated(arithmetic))


class ScaledProduct(Product):
    """A product of queries with what they look at: c = 1/√d."""

    @property
    def scale(self) -> float:
        """1/√d."""
        return float(self.site.architecture.head_size**-0.5)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of the product, rounded where it is a call of its own, then the scaling.

        2u |y| bounds the effect of rounding the constant; or its root is rounded twice, where query and key are divided each.
        """
        y, u = self.value, arithmetic.accumulate.unit_roundoff
        own = self.accumulated(arithmetic) + u**2 / 3.0 * y**2 + self.scale**2 * arithmetic.call_variance(y / self.scale)
        return elementwise(own, 2.0 * u * np.abs(y))


class Scores(ScaledProduct):
    """s = q kᵀ / √d a head: (B, S, H), (B, S, H) -> (B, h, S, S); Vaswani et al. 2017, equation 1, before mask and softmax."""

    left, right = Factor(0, "heads"), Factor(1, "heads", transposed=True)


class Context(Product):
    """c = p v a head, heads side by side: (B, h, S, S), (B, S, H) -> (B, S, H)."""

    left, right, result = Factor(0, "as it is"), Factor(1, "heads"), "heads"
