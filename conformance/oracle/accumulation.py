"""Accumulated products: the value of left @ right, and how far the roundings of its partial sums may take it.

A product accumulated in a format of unit roundoff u, in index order, y = s_K with s_k = s_{k-1} + a_k b_k, makes in each
addition an error uniform on at most ±u |s_k|, whose variance is u² s_k² / 3; the products are exact in a fused multiply-add and
otherwise no larger. So

    sigma² = u²/3 · (Σ_k s_k² + y²)

the last term for the store (Higham 2002, section 3.1, with Higham and Mary 2019 for the random model). A bias b may be added last
or be what accumulation starts from (a BLAS with beta = 1), with s_k + b in place of s_k; and terms may be added from the last to
the first, with y − s_k: Σ s_k² is the largest of the four.

Σ s_k² is estimated from at most eight block partial sums. Between a block's ends, s_{i-1} and s_i, the partial sums are taken as a
Brownian bridge: over m terms Σ s² = m · (s_{i-1}² + s_{i-1} s_i + s_i²)/3 + m · t/6 (Revuz and Yor 1999, chapter I, exercise
3.10). Σ t over the blocks is the larger of the squared increments' and the squared terms' sum: the first sees a drift, the second
terms that cancel within a block. Blocked and pairwise orders make smaller errors.

A matrix unit adds m products at once to its accumulator and cuts off the last bits, an error of at most 2u |s_k| towards zero each
time, and always towards zero: n such errors add up to at most b = 2u Σ |s_k| over the n partial sums that it keeps, in sign as in
size. Taken as uniform on ±b, as every error is of which a bound is known, with (Σ |s_k|)² ≤ n Σ s_k² (Cauchy–Schwarz) and the n
partial sums a sample of the K, Σ s_k² over them n/K times that over all:

    sigma² = (2u)²/3 · n²/K · Σ_k s_k² + u²/3 · y²

m is at least 4 (Volta's, and Ampere's for TF32; 8 and 16 elsewhere; Fasi, Higham, Mikaitis and Pranesh 2021), so n = K/4; and three
times that where each float32 operand is two numbers of TF32, in three passes (the fourth, of their last bits, is left out, no more
than rounding a product is). Blanchard, Higham, Lopez, Mary and Pranesh 2020, *Mixed precision block fused multiply-add*, have the
bound. What a kernel keeps unrounded between two products counts as float32, which is wider than half formats need.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import cached_property, once_an_array
from conformance.oracle.maps import rows_times

BLOCKS = 8
UNIT = 4  # products that a matrix unit adds at once, at the least
PASSES = 3  # of TF32 for a product of float32: big · big, big · small and small · big


class Operand(NamedTuple):
    """A factor of a product in float32, times a power of two that brings it to at most 1, and its squares.

    No square overflows, and what vanishes is below 1e-38 of the largest.
    """

    values: Single
    squares: Single
    scale: float

    @property
    def transposed(self) -> "Operand":
        """With the last two axes exchanged."""
        return Operand(self.values.swapaxes(-1, -2), self.squares.swapaxes(-1, -2), self.scale)


def operand(x: Array) -> Operand:
    """An array as a factor."""
    largest = float(max(x.max(initial=0.0), -x.min(initial=0.0)))
    scale = 2.0 ** -min(max(math.frexp(largest)[1], -500), 500)
    values = (x if scale == 1.0 else x * scale).astype(np.float32)
    return Operand(values, values * values, scale)


weight_operand = once_an_array(operand)


class Accumulation:
    """The product left @ right of (..., M, K) and (..., K, N), and its Σ_k s_k², with a bias (N,) added last or first.

    The partial sums s_k come with a product that is computed by blocks. Where both are needed, `squares` is to be asked for first:
    it leaves the product behind, which by itself is computed at once, in two thirds of the time.
    """

    def __init__(
        self, left: Array, right: Array, bias: Array | float = 0.0, right_operand: Callable[[], Operand] | None = None
    ) -> None:
        """Of two factors; `right_operand` returns the second as an operand, where that is kept."""
        self._left, self._right, self._bias = left, right, bias
        self._right_operand = right_operand or (lambda: operand(right))

    @cached_property
    def product(self) -> Array:
        """left @ right, without the bias, (..., M, N)."""
        return rows_times(self._left, self._right) if self._right.ndim == 2 else np.asarray(self._left @ self._right)

    @cached_property
    def squares(self) -> Array:
        """Σ_k s_k², (..., M, N): of float32 numbers, which moves it by some 1e-6 of itself."""
        left, right = operand(self._left), self._right_operand()
        rows, row_squares = self._left, left.squares
        if self._right.ndim == 2:  # one product for all sequences
            rows, row_squares = rows.reshape(-1, rows.shape[-1]), row_squares.reshape(-1, rows.shape[-1])
        scale, shape = left.scale * right.scale, (*self._left.shape[:-1], self._right.shape[-1])
        sums = _by_blocks(rows * scale, self._right)
        found = _bridged(sums, row_squares @ right.squares, rows.shape[-1], np.float32(self._bias * scale))
        self.__dict__.setdefault("product", (sums.product / scale).reshape(shape))
        return np.asarray(found * np.float64(scale**-2.0)).reshape(shape)


class _Sums(NamedTuple):
    """A product y by n blocks of terms, with partial sums s_i at their ends; all but the product in float32.

    Attributes:
        product, last: y.
        squares, sums: Σ s_i² and Σ s_i, i < n.
        increments: D = Σ d_i², d_i = s_i − s_{i-1}.
        blocks: n.
    """

    product: Array
    last: Single
    squares: Single
    sums: Single
    increments: Single
    blocks: int


def _by_blocks(left: Array, right: Array) -> _Sums:
    """The partial sums at the ends of at most eight blocks of terms; of factors whose product's square does not overflow."""
    length, shape = left.shape[-1], (*left.shape[:-1], right.shape[-1])
    edges = np.linspace(0, length, min(BLOCKS, length) + 1).astype(int)
    y, block, single = np.zeros(shape), np.empty(shape), np.empty(shape, np.float32)
    squares, sums, increments = (np.zeros(shape, np.float32) for _ in range(3))
    for start, stop in pairwise(edges):
        if start:
            single[...] = y
            sums += single
            squares += np.multiply(single, single, out=single)
        np.matmul(left[..., start:stop], right[..., start:stop, :], out=block)
        y += block
        single[...] = block
        increments += np.multiply(single, single, out=single)
    single[...] = y
    return _Sums(y, single, squares, sums, increments, len(edges) - 1)


def _bridged(found: _Sums, terms: Single, length: int, bias: Single | np.float32) -> Single:
    """Σ_k s_k² from the sums at the ends of blocks of m terms, and from the terms' squared sum.

    Since s_{i-1}² + s_{i-1} s_i + s_i² = 3/2 · (s_{i-1}² + s_i²) − d_i²/2, all bridges together come to

        m · (Σ_{i<n} s_i² + y²/2) + m/6 · (T − D), with T = max(D, Σ terms²)

    and Σ_k s_k to m · (Σ_{i<n} s_i + y/2). Where n does not divide K the blocks differ by one term, and m = K/n.
    """
    y, each = found.last, np.float32(length / found.blocks)
    squares, sums, excess = found.squares, found.sums, terms
    excess -= found.increments
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
    return squares


def _orders(y: Single, sums: Single, terms: np.float32, bias: Single | np.float32) -> Single:
    """The most by which Σ s_k² is larger if terms are added from the last to the first, or a bias b before them.

    In the former order s_k is y − s_k, with a bias it is s_k + b.
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


def accumulation_variance(squares: Array, y: Array, terms: int, arithmetic: Arithmetic) -> Array:
    """Of K terms, as the module's docstring derives, and the rounding to storage where that is a narrower format; never zero."""
    u = arithmetic.accumulate.unit_roundoff
    variance = np.square(y)
    variance += squares if arithmetic.summation == "rounded" else _inflation(terms, arithmetic) * squares
    variance *= u**2 / 3.0
    if arithmetic.is_mixed:
        variance += arithmetic.store_variance(y)
    return np.maximum(variance, arithmetic.storage.floor_variance, out=variance)


def _inflation(terms: int, arithmetic: Arithmetic) -> float:
    """How many times more the partial sums weigh in a matrix unit than where every addition rounds: 4 n²/K."""
    passes = 1 if arithmetic.is_mixed else PASSES
    return 4.0 * (passes * math.ceil(terms / UNIT)) ** 2 / terms
