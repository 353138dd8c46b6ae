"""Accumulated products: the value of left @ right, and the rounding errors of its partial sums.

Let a product y = s_K be accumulated in index order, s_k = s_{k-1} + a_k b_k, in a format of unit roundoff u. Each addition makes
an error that is uniform on at most ±u |s_k|, with variance u² s_k² / 3; the products a_k b_k are exact in a fused multiply-add,
and their errors are no larger otherwise. Hence

    sigma² = u²/3 · (Σ_k s_k² + y²)

where the last term is the rounding of the stored result (Higham 2002, section 3.1, with Higham and Mary 2019 for the random
model). A bias b may be added last, or it may be the initial value of the accumulation (a BLAS with beta = 1), with s_k + b in
place of s_k. Terms may also be added from the last to the first, with y − s_k in place of s_k, or in any other order, as in the
lanes of a vector unit or in strided parts of a sum over threads. In a random order the partial sums are a Brownian bridge over all
K terms t: with T = Σ t², E Σ s_k² = K y²/3 + K T/6 and E Σ s_k = K y/2. The largest Σ s_k² of these six cases is used.

Σ s_k² is estimated from at most eight block partial sums. Between the ends s_{i-1} and s_i of a block, the partial sums are
modelled as a Brownian bridge: over m terms Σ s² = m · (s_{i-1}² + s_{i-1} s_i + s_i²)/3 + m · t/6 (Revuz and Yor 1999, chapter I,
exercise 3.10). Σ t over the blocks is the sum of the squared increments or that of the squared terms, whichever is larger: the
former captures a drift, the latter captures terms that cancel within a block. Blocked and pairwise orders make smaller errors.

A matrix unit adds m products at once to its accumulator and truncates the excess bits. Each time, the error is at most 2u |s_k|
and always directed towards zero, so the errors of the n partial sums that it stores need not cancel: they add up to at most
b = 2u Σ |s_k|. The total error is modelled as uniform on ±b, like every error with a known bound. With (Σ |s_k|)² ≤ n Σ s_k²
(Cauchy–Schwarz), and with the n partial sums as a sample of all K, so that their Σ s_k² is n/K times the sum over all K:

    sigma² = (2u)²/3 · n²/K · Σ_k s_k² + u²/3 · y²

m is at least 4 (Volta, and Ampere for TF32; 8 and 16 elsewhere; Fasi, Higham, Mikaitis and Pranesh 2021), so n = K/4. n is three
times larger where each float32 operand is split into two TF32 numbers and multiplied in three passes; the fourth pass, over the
low parts of both operands, is omitted, with an effect no larger than the rounding of a product. The bound is given by Blanchard,
Higham, Lopez, Mary and Pranesh 2020, *Mixed precision block fused multiply-add*. Values that a kernel keeps unrounded between two
products are treated as float32, which is wider than half-precision formats require.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured, Single, as_array
from conformance.numerics.functions import cumulative_sums
from conformance.numerics.memo import cached_property, once_an_array
from conformance.oracle.linear_maps import Matrix, rows_times

BLOCKS = 8
SPREAD = 2.0**40  # Ratio of numbers whose squares, and sums of 2²⁰ of these, are in float32's range.
_LARGEST_IN_SINGLE = 2.0**127  # The largest power of two in float32 (IEEE 754 binary32, emax = 127).
_LARGEST_EXPONENT = 500  # The square of a scale, up to 2¹⁰⁰⁰, is finite in float64.
UNIT = 4  # Least number of products that a matrix unit adds at once.
PASSES = 3  # TF32 passes for a float32 product: big · big, big · small and small · big.


class Operand(NamedTuple):
    """A factor of a product in float32, and its squares; the factor is scaled by powers of two so that its elements are at most 1.

    No square overflows. Where the squares of products underflow, these are below 1e-19 of those of the largest elements.

    Attributes:
        values: scaled elements.
        squares: squares of the scaled elements.
        scale: power of two by which the elements were multiplied; one for each row, (..., M, 1), if rows differ much.
    """

    values: Single
    squares: Single
    scale: float | Array

    @property
    def transposed(self) -> "Operand":
        """The operand with its last two axes exchanged."""
        return Operand(self.values.swapaxes(-1, -2), self.squares.swapaxes(-1, -2), self.scale)


def operand(x: Array) -> Operand:
    """Return an array as a factor of a product."""
    return _scaled(x, _scale(_largest(x)))


weight_operand = once_an_array(operand)


def _left_operand(x: Array) -> Operand:
    """Return an array as the left factor, each row with a scale of its own if one would let the squares of small rows underflow."""
    rows = np.maximum(x.max(-1, keepdims=True, initial=0.0), -x.min(-1, keepdims=True, initial=0.0))
    largest = float(rows.max(initial=0.0))
    if ((rows == 0.0) | (rows >= largest / SPREAD)).all():
        return _scaled(x, _scale(largest))
    exponents = np.ceil(np.log2(np.where(rows > 0.0, rows, 1.0)))
    return _scaled(x, np.exp2(-np.clip(exponents, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)))


def product_in_single(left: Array | Single, right: Array | Single | Operand) -> Single:
    """Return left @ right, (..., M, K) by (..., K, N), in float32, where elements of a factor may be subnormal in float32.

    A product with subnormal numbers, such as the errors of a gradient that is 0, takes many times longer. Both factors are
    therefore scaled by powers of two, so that the largest elements of the left one are about `SPREAD`.
    """
    values, of_left = _in_single(left, SPREAD)
    other, of_right = (right.values, float(right.scale)) if isinstance(right, Operand) else _in_single(right, 1.0)
    product, scale = rows_times(values, other) if other.ndim == 2 else values @ other, of_left * of_right
    # A division by two numbers may overflow or underflow in between, so there is one wherever its divisor is in range.
    for each in (scale,) if 1.0 / _LARGEST_IN_SINGLE < scale <= _LARGEST_IN_SINGLE else sorted((of_left, of_right)):
        product /= np.float32(each)
    return product


def _in_single(x: Array | Single, largest: float) -> tuple[Single, float]:
    """Return an array in float32, scaled by a power of two so that its elements are at most `largest`, and that power."""
    scale = min(_scale(_largest(x)) * largest, _LARGEST_IN_SINGLE)
    return (x * scale).astype(np.float32), scale


def _largest(x: Array | Single) -> float:
    return float(max(x.max(initial=0.0), -x.min(initial=0.0)))


def _scale(largest: float) -> float:
    return 2.0 ** -min(max(math.frexp(largest)[1], -_LARGEST_EXPONENT), _LARGEST_EXPONENT)


def _scaled(x: Array, scale: float | Array) -> Operand:
    values = (x if isinstance(scale, float) and scale == 1.0 else x * scale).astype(np.float32)
    return Operand(values, values * values, scale)


class Accumulation:
    """The product left @ right, (..., M, K) by (..., K, N), and its Σ_k s_k², with a bias (N,) added last or first."""

    def __init__(
        self, left: Array, right: Array, bias: Array | float = 0.0, right_operand: Callable[[], Operand] | None = None
    ) -> None:
        """Bind the factors and the bias; `right_operand` returns the right factor as an operand if it is cached."""
        self._left, self._right, self._bias = left, right, bias
        self._right_operand = right_operand or (lambda: operand(right))

    @cached_property
    def product(self) -> Array:
        """The product left @ right without the bias, (..., M, N)."""
        return as_array(self._as_matrices(self._left) @ self._right).reshape(self._shape)

    @cached_property
    def squares(self) -> Array:
        """Σ_k s_k², (..., M, N), computed in float32, with a relative error of about 1e-6."""
        left, right = _left_operand(self._left), self._right_operand()
        terms = self._as_matrices(left.squares) @ right.squares
        sums = _summed(self._as_matrices(left.values), right.values)
        of_left = left.scale if isinstance(left.scale, float) else self._as_matrices(left.scale)
        bias = as_array(self._bias * (of_left * right.scale))
        if np.abs(bias).max(initial=0.0) < SPREAD:
            bridged = _bridged(sums, terms, self._left.shape[-1], bias.astype(np.float32))
        else:  # The square of the bias would overflow in float32.
            bridged = _bridged(sums.in_double, terms.astype(np.float64), self._left.shape[-1], bias)
        squares = bridged.astype(np.float64)
        squares *= of_left**-2.0  # the square of the product of both scales may exceed float64's range
        squares *= right.scale**-2.0
        return as_array(squares).reshape(self._shape)

    @cached_property
    def in_random_order(self) -> Array:
        """E Σ_k s_k² if the terms are added in a random order, (..., M, N), without a bias: at most `squares`."""
        left, right = _left_operand(self._left), self._right_operand()
        terms = (self._as_matrices(left.squares) @ right.squares).astype(np.float64)
        terms *= (left.scale if isinstance(left.scale, float) else self._as_matrices(left.scale)) ** -2.0
        terms *= right.scale**-2.0
        squares = np.square(self.product)
        squares *= 2.0
        squares += terms.reshape(self._shape)
        squares *= self._left.shape[-1] / 6.0
        return squares

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*self._left.shape[:-1], self._right.shape[-1])

    def _as_matrices(self, left: Matrix) -> Matrix:
        """Return the left factor as one matrix for all sequences if the right one is one matrix: one product instead of many."""
        return left.reshape(-1, left.shape[-1]) if self._right.ndim == 2 else left


class _Sums(NamedTuple):
    """A product y computed in n blocks of terms, with the partial sums s_i at the block ends.

    Attributes:
        product: y.
        squares, sums: Σ s_i² and Σ s_i, i < n.
        increments: D = Σ d_i², d_i = s_i − s_{i-1}.
        blocks: n.
    """

    product: Captured
    squares: Captured
    sums: Captured
    increments: Captured
    blocks: int

    @property
    def in_double(self) -> "_Sums":
        """The same values in float64."""
        y, squares, sums, increments = (x.astype(np.float64) for x in self[:4])
        return _Sums(y, squares, sums, increments, self.blocks)


def _summed(left: Single, right: Single) -> _Sums:
    """Return the partial sums at the ends of at most eight blocks of terms; the squared product must not overflow."""
    (start, stop), *others = pairwise(_edges(left.shape[-1]))
    y = left[..., start:stop] @ right[..., start:stop, :]
    squares, sums, increments, block = np.zeros_like(y), np.zeros_like(y), np.square(y), np.empty_like(y)
    for start, stop in others:
        sums += y
        squares += np.square(y, out=block)
        np.matmul(left[..., start:stop], right[..., start:stop, :], out=block)
        y += block
        increments += np.square(block, out=block)
    return _Sums(y, squares, sums, increments, 1 + len(others))


@cache
def _edges(terms: int) -> tuple[int, ...]:
    """Return the numbers of terms at which the blocks end, from 0."""
    return tuple(np.linspace(0, terms, min(BLOCKS, terms) + 1).astype(int).tolist())


def _bridged(at_ends: _Sums, terms: Captured, length: int, bias: Captured) -> Captured:
    """Return Σ_k s_k² from the sums at the ends of blocks of m terms and from the sum of the squared terms.

    Since s_{i-1}² + s_{i-1} s_i + s_i² = 3/2 · (s_{i-1}² + s_i²) − d_i²/2, the sum over all bridges is

        m · (Σ_{i<n} s_i² + y²/2) + m/6 · (T − D), with T = max(D, Σ terms²)

    and Σ_k s_k is m · (Σ_{i<n} s_i + y/2). If n does not divide K, block lengths differ by one, and m = K/n.
    """
    y, each = at_ends.product, np.float32(length / at_ends.blocks)
    any_order = _in_any_order(y, terms, np.float32(length), bias)
    squares, sums, excess = at_ends.squares, at_ends.sums, terms
    excess -= at_ends.increments
    np.maximum(excess, 0.0, out=excess)
    excess *= np.float32(1.0 / 6.0)
    squares += excess
    half = np.multiply(y, np.float32(0.5), out=excess)
    sums += half
    half *= y
    squares += half
    sums *= each
    squares *= each
    squares += _orders(y, sums, np.float32(length), bias)
    return np.maximum(squares, any_order, out=squares)


def _in_any_order(y: Captured, terms: Captured, length: np.float32, bias: Captured) -> Captured:
    """Return the expected Σ_k s_k² if the terms are added in a random order, with the bias last or first: whichever is larger."""
    squares = np.square(y)
    squares *= np.float32(2.0)
    squares += terms
    squares *= length / np.float32(6.0)
    if np.any(bias):
        shifted = bias + y
        shifted *= length * bias
        squares += np.maximum(shifted, np.float32(0.0), out=shifted)
    return squares


def _orders(y: Captured, sums: Captured, terms: np.float32, bias: Captured) -> Captured:
    """Return the largest increase of Σ s_k² if terms are added from the last to the first, or a bias b before the terms.

    In reverse order s_k becomes y − s_k; with a bias it becomes s_k + b.
    """
    backwards = terms * y
    backwards -= sums
    if not np.any(bias):
        backwards -= sums
        backwards *= y
        np.maximum(backwards, 0.0, out=backwards)
        return backwards
    twice, constant = np.float32(2.0) * bias, terms * np.square(bias)
    first, last = twice * sums, twice * backwards
    for larger in (first, last):
        larger += constant
        np.maximum(larger, 0.0, out=larger)
    backwards -= sums
    backwards *= y
    backwards += last
    np.maximum(first, backwards, out=backwards)
    return backwards


def squared_partial_sums(terms: Array, axis: int = -1) -> Array:
    """Return Σ_k s_k² for the partial sums s_k of n terms added first to last, last to first, or in a random order.

    The largest of the three is returned; `axis` remains, with length 1. The partial sums of the reverse order are y − s_{k−1}, with
    y = s_n, and their squares add up to Σ s_k² + y (n y − 2 Σ s_k + y).
    """
    if axis != -1:
        return np.moveaxis(squared_partial_sums(np.moveaxis(terms, axis, -1)), -1, axis)
    sums, length = cumulative_sums(terms), terms.shape[-1]
    y, total = sums[..., -1:], sums.sum(-1, keepdims=True)
    more = np.maximum(y * ((length + 1.0) * y - 2.0 * total), 0.0)
    in_order = np.square(sums).sum(-1, keepdims=True) + more
    return as_array(np.maximum(in_order, in_random_order(y, np.square(terms).sum(-1, keepdims=True), length)))


def in_random_order(y: Array, squares: Array, length: int | Array) -> Array:
    """Return the mean of Σ_k s_k² over all orders of n terms t with the sum y and the sum of squares T: (n + 1) (2 y² + T)/6.

    It is the sum over k of E s_k² = k/n · (T + (k − 1)/(n − 1) · (y² − T)), since E t_i t_j = (y² − T)/(n (n − 1)) for i ≠ j.
    """
    return as_array((length + 1.0) / 6.0 * (2.0 * np.square(y) + squares))


def accumulation_variance(squares: Array, y: Array, terms: int, arithmetic: Arithmetic) -> Array:
    """Return the error variance of an accumulated product, as derived in the module docstring; it is never zero.

    The rounding to storage is included if the storage format is narrower than the accumulation format.

    Args:
        squares: Σ_k s_k².
        y: results, including the bias.
        terms: number of terms K.
        arithmetic: the arithmetic model.
    """
    u = arithmetic.accumulate.unit_roundoff
    variance = np.square(y)
    variance += squares if arithmetic.summation == "rounded" else _inflation(terms, arithmetic) * squares
    variance *= u**2 / 3.0
    if arithmetic.is_mixed:
        variance += arithmetic.storage_rounding_variance(y)
    return np.maximum(variance, arithmetic.storage.floor_variance, out=variance)


def _inflation(terms: int, arithmetic: Arithmetic) -> float:
    """Return the factor on Σ s_k² for a matrix unit, relative to additions that each round: 4 n²/K."""
    passes = 1 if arithmetic.is_mixed else PASSES
    return 4.0 * (passes * math.ceil(terms / UNIT)) ** 2 / terms
