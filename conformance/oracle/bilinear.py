"""Steps that are one matrix product of two parents, each laid out as matrices: bilinear functions of the two."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.carried import Errors, mixed
from conformance.oracle.maps import LinearMap, Roundings
from conformance.oracle.products import accumulation_variance, merge_heads, operand, partial_squares, split_heads
from conformance.oracle.step import Step, elementwise

Layout = Literal["as it is", "heads", "rows", "first tokens", "by token", "by query", "by key", "distances by key"]

# How an array of a layout is brought to matrices, given the size of a head.
_MATRICES: Mapping[Layout, Callable[[Array, int], Array]] = {
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
_RESTORED: Mapping[Layout, Callable[[Array], Array]] = {
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

    def _laid_out(self, x: Array, layout: Layout) -> Array:
        return _MATRICES[layout](x, self.site.architecture.head_size)

    def _factor(self, x: Array, factor: Factor) -> Array:
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

    def _as_result(self, matrix: Array) -> Array:
        return _RESTORED[self.result](matrix)

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

    def through(self, parent: int, errors: Errors) -> Errors:
        """A factor that each head has for itself, as it has the result, is mixed by the other."""
        if parent == self.right.parent and self.right.layout == self.result == "heads":
            return mixed(self.scale * self._factors[0], errors, self.parents[parent])
        return super().through(parent, errors)

    def accumulated(self, arithmetic: Arithmetic) -> Array:
        """The variance of the product's own roundings, elementwise."""
        left, right = self._factors
        squares = self._as_result(partial_squares(operand(left), operand(right))) * self.scale**2
        return accumulation_variance(squares, self.value, left.shape[-1], arithmetic)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `oracle.products` derives."""
        return elementwise(self.accumulated(arithmetic))
