"""Steps that are a single matrix product of two parents, each rearranged as matrices: attention scores, context and others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance, product_in_single
from conformance.oracle.correlated_errors import CorrelatedErrors, Mixture, mixed
from conformance.oracle.linear_maps import LinearMap, Matrix, Roundings
from conformance.oracle.step import Step, elementwise_roundings


def split_heads(x: Matrix, size: int) -> Matrix:
    """Return x (B, S, h d) as (B, h, S, d) with d = `size`: head j has features j·d to (j+1)·d − 1.

    The result is a copy, since products of views are many times slower.
    """
    batch, length, width = x.shape
    return np.ascontiguousarray(x.reshape(batch, length, width // size, size).transpose(0, 2, 1, 3), like=x)


def merge_heads(x: Matrix) -> Matrix:
    """Return x (B, h, S, d) as (B, S, H) with H = h d; the inverse of `split_heads`."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


Layout = Literal["as it is", "heads", "rows", "first tokens", "by token", "by query", "by key", "distances by key"]

# Functions that rearrange an array of each layout as matrices, given the size of a head.
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

# The inverse functions, for the layouts where the array's shape alone does not determine them.
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
    """A factor of a product: the index of the parent, its layout as matrices, and whether the matrices are transposed."""

    parent: int
    layout: Layout
    transposed: bool = False


class Product(Step):
    """y = c L R, where the factors L and R are the two parents rearranged as matrices.

    Attributes:
        left: the factor L.
        right: the factor R.
        result: layout of the result.
    """

    couples_positions = True

    left: ClassVar[Factor]
    right: ClassVar[Factor]
    result: ClassVar[Layout] = "as it is"

    @property
    def scale(self) -> float:
        """The constant c."""
        return 1.0

    def _laid_out(self, x: Matrix, layout: Layout) -> Matrix:
        return _MATRICES[layout](x, self.site.architecture.head_size)

    def _factor(self, x: Matrix, factor: Factor) -> Matrix:
        matrix = self._laid_out(x, factor.layout)
        return matrix.swapaxes(-1, -2) if factor.transposed else matrix

    def _restored(self, matrix: Array, factor: Factor) -> Array:
        """Return the parent of which `matrix` is the factor, the inverse of `_factor`; elements that the factor lacks are 0."""
        x, shape = matrix.swapaxes(-1, -2) if factor.transposed else matrix, self.parents[factor.parent].shape
        if factor.layout in _RESTORED:
            return _RESTORED[factor.layout](x)
        if factor.layout == "first tokens" and len(shape) == 3:
            whole = np.zeros(shape, like=x)
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
        """The result y."""
        return self._as_result(self._accumulation.product * self.scale)

    def effect_of(self, *errors: Array | Single) -> Single:
        """Return c (e_L R + (L − e_L) e_R), in float32: errors are small, so float32 is accurate enough."""
        left, right = self._factors
        e_left, e_right = (self._factor(as_array(errors[f.parent]), f) for f in (self.left, self.right))
        effect = product_in_single(e_left, right)
        effect += product_in_single(left - e_left, e_right)
        return self._as_result(as_array(effect * np.float32(self.scale)))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the maps e -> c e R of the left factor and e -> c L e of the right factor, in the order of the parents."""
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

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result.

        If R and the result are split by head, errors of R become a mixture weighted by c L. If the rows of L are those of the
        parent, the errors that a row shares are summed like the row itself; if they are its columns, an error that a row shares
        becomes a mixture over them. Its covariance with the row's other errors is then added to the variance of these, which is
        clipped at 0.
        """
        if not errors.any:
            return errors
        if parent == self.right.parent and self.right.layout == self.result == "heads":
            return mixed(self.scale * self._factors[0], errors, self.parents[parent])
        if parent != self.left.parent or self.left.layout != "as it is":
            return super().through(parent, errors)
        if not self.left.transposed:
            return CorrelatedErrors(self._as_result(as_array(errors.in_rows(self.scale * self._factors[1]).independent)))
        squares = np.square(self.parents[self.right.parent])
        spread = tuple(Mixture(self.scale * error.effect.swapaxes(-1, -2), squares) for error in errors.shared)
        others = errors.variance - sum(np.square(error.effect) for error in errors.shared)
        return super().through(parent, CorrelatedErrors(np.maximum(others, 0.0))) + CorrelatedErrors(mixtures=spread)

    def accumulated(self, arithmetic: Arithmetic) -> Array:
        """Return the elementwise variance of the product's own rounding errors."""
        squares = self._as_result(self._accumulation.squares) * self.scale**2
        return accumulation_variance(squares, self.value, self._factors[0].shape[-1], arithmetic)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors derived in `oracle.accumulation`."""
        return elementwise_roundings(self.accumulated(arithmetic))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of terms that are added in a random order, without any other."""
        squares = self._as_result(self._accumulation.in_random_order) * self.scale**2
        return elementwise_roundings(accumulation_variance(squares, self.value, self._factors[0].shape[-1], arithmetic))


class ScaledProduct(Product):
    """A product that is scaled by c = 1/√d, where d is the head size."""

    @property
    def scale(self) -> float:
        """The constant c = 1/√d."""
        return float(self.site.architecture.head_size**-0.5)

    def stored(self, arithmetic: Arithmetic, error: Array | float = 0.0) -> Array:
        """Return the result plus an error as it is stored; unless the step is fused, the product is rounded before it is scaled."""
        if arithmetic.rounding == "fused":
            return super().stored(arithmetic, error)
        return arithmetic.storage.round(arithmetic.storage.round((self.value + error) / self.scale) * self.scale)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the product and of the scaling.

        If the product is a separate call, it is rounded to storage before the scaling. The bound 2u |y| is the effect of rounding
        the constant 1/√d; it also covers kernels that divide query and key each by d^(1/4), which is then rounded twice.
        """
        y, u = self.value, arithmetic.accumulate.unit_roundoff
        own = self.accumulated(arithmetic) + u**2 / 3.0 * y**2 + self.scale**2 * arithmetic.call_rounding_variance(y / self.scale)
        return elementwise_roundings(own, 2.0 * u * np.abs(y))


class Scores(ScaledProduct, kinds=("scores",)):
    """s = q kᵀ / √d per head: (B, S, H), (B, S, H) -> (B, h, S, S), before mask and softmax (Vaswani et al. 2017, equation 1)."""

    left, right = Factor(0, "heads"), Factor(1, "heads", transposed=True)


class Context(Product, kinds=("context",)):
    """c = p v per head, with the heads concatenated: (B, h, S, S), (B, S, H) -> (B, S, H)."""

    left, right, result = Factor(0, "as it is"), Factor(1, "heads"), "heads"
