"""Accumulated products: linear layers, attention scores and the attention-weighted sum.

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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import cached_property, once_an_array
from conformance.oracle.carried import Errors, mixed
from conformance.oracle.maps import LinearMap, Matrix, Roundings, matrix, rows_times
from conformance.oracle.step import Step, elementwise

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
    values = (x * scale).astype(np.float32)
    return Operand(values, values * values, scale)


_weight = once_an_array(operand)


def partial_squares(left: Operand, right: Operand, bias: Array | float = 0.0) -> Array:
    """Σ_k s_k² of the product left @ right, bias added last or first; (..., M, K) @ (..., K, N), bias (N,).

    In float32, which moves it by some 1e-6 of itself. Blocks of m terms, d_i = s_i − s_{i-1}: since
    s_{i-1}² + s_{i-1} s_i + s_i² = 3/2 · (s_{i-1}² + s_i²) − d_i²/2, all bridges together come to

        m · (Σ_{i<n} s_i² + y²/2) + m/6 · (T − D), with D = Σ d_i² and T = max(D, Σ terms²)

    and Σ_k s_k to m · (Σ_{i<n} s_i + y/2). Where n does not divide K the blocks differ by one term, and m = K/n.
    """
    scale, length = left.scale * right.scale, left.values.shape[-1]
    shape, rows = (*left.values.shape[:-1], right.values.shape[-1]), left.values
    if right.values.ndim == 2:  # one product for all sequences
        rows, left = rows.reshape(-1, length), left._replace(squares=left.squares.reshape(-1, length))
    y = np.zeros((*rows.shape[:-1], shape[-1]), np.float32)
    squares, sums, increments, scratch = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y), np.empty_like(y)
    edges = np.linspace(0, length, min(BLOCKS, length) + 1).astype(int)
    for start, stop in pairwise(edges):
        sums += y
        squares += np.multiply(y, y, out=scratch)
        np.matmul(rows[..., start:stop], right.values[..., start:stop, :], out=scratch)
        y += scratch
        increments += np.multiply(scratch, scratch, out=scratch)
    np.matmul(left.squares, right.squares, out=scratch)
    scratch -= increments
    np.maximum(scratch, 0.0, out=scratch)
    scratch /= np.float32(6.0)
    squares += scratch
    half = np.multiply(y, np.float32(0.5), out=scratch)
    sums += half
    half *= y
    squares += half
    terms = np.float32(length / (len(edges) - 1))
    sums *= terms
    squares *= terms
    squares += _orders(y, sums, np.float32(length), np.float32(bias * scale))
    return np.asarray(squares * np.float64(scale**-2.0)).reshape(shape)


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
    constant = terms * np.square(bias)
    first, last = (np.maximum(2.0 * bias * t + constant, 0.0) for t in (sums, backwards))
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


class Linear(Step):
    """y = x Wᵀ + b; x (..., I), W (O, I), b (O,), y (..., O); a layer without bias has b = 0."""

    @property
    def inputs(self) -> Array:
        """x."""
        return self.parents[0]

    @property
    def bias(self) -> Array:
        """b, zeros where the layer has none."""
        return self.site.parameters.get("bias", np.zeros(len(self.site.parameters["weight"])))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return rows_times(self.inputs, self.site.parameters["weight"].T) + self.bias

    def moved_by(self, *errors: Array | Single) -> Single:
        """e Wᵀ, in float32: an error is a small number to begin with."""
        weight = _weight(self.site.parameters["weight"])
        return rows_times(errors[0].astype(np.float32), weight.values.T) / np.float32(weight.scale)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """W."""
        return (matrix(self.site.parameters["weight"]),)

    @cached_property
    def _squares(self) -> Array:
        """Σ s_k²."""
        return partial_squares(operand(self.inputs), _weight(self.site.parameters["weight"]).transposed, self.bias)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As the module's docstring derives; a native bias is a call of its own and rounds the product to storage first."""
        variance = accumulation_variance(self._squares, self.value, self.inputs.shape[-1], arithmetic)
        if arithmetic.rounding == "native" and "bias" in self.site.parameters:
            variance = variance + arithmetic.call_variance(self.value - self.bias)
        return elementwise(variance)


class FirstTokenLinear(Linear):
    """y = x[:, 0] Wᵀ + b: (B, S, H) -> (B, H), the pooler's dense layer."""

    couples_positions = True

    @property
    def inputs(self) -> Array:
        """The first token of each row."""
        return self.parents[0][:, 0]

    def moved_by(self, *errors: Array | Single) -> Single:
        """Of the first token's."""
        return super().moved_by(errors[0][:, 0])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """W at the first token, 0 elsewhere."""
        inner, shape = matrix(self.site.parameters["weight"]), self.parents[0].shape

        def adjoint(w: Array) -> Array:
            out = np.zeros(shape)
            out[:, 0] = inner.adjoint(w)
            return out

        return (LinearMap(lambda v: inner.variance(v[:, 0]), adjoint),)


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


class Scores(Step):
    """s = q kᵀ / √d a head: (B, S, H), (B, S, H) -> (B, h, S, S); Vaswani et al. 2017, equation 1, before mask and softmax."""

    couples_positions = True

    @property
    def scale(self) -> float:
        """1/√d."""
        return float(self.site.architecture.head_size**-0.5)

    @cached_property
    def _heads(self) -> tuple[Array, Array]:
        q, k = (split_heads(p, self.site.architecture.head_size) for p in self.parents)
        return q, k

    @cached_property
    def value(self) -> Array:
        """The equation."""
        q, k = self._heads
        return np.asarray(q @ k.swapaxes(-1, -2) * self.scale)

    @cached_property
    def _squares(self) -> Array:
        """Σ s_k²."""
        q, k = self._heads
        return partial_squares(operand(q), operand(k).transposed) * self.scale**2

    def moved_by(self, *errors: Array | Single) -> Single:
        """(e_q kᵀ + (q − e_q) e_kᵀ)/√d, in float32."""
        size = self.site.architecture.head_size
        e_q, e_k = (split_heads(e.astype(np.float32), size) for e in errors)
        q, k = (x.astype(np.float32) for x in self._heads)
        moved = e_q @ k.swapaxes(-1, -2) + (q - e_q) @ e_k.swapaxes(-1, -2)
        return np.asarray(moved * np.float32(self.scale))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂s_ij/∂q_i = k_j/√d and ∂s_ij/∂k_j = q_i/√d."""
        q, k = self._heads
        size, scale = self.site.architecture.head_size, self.scale
        return (
            LinearMap(
                lambda v: scale**2 * split_heads(v, size) @ (k**2).swapaxes(-1, -2),
                lambda w: merge_heads(scale * w @ k),
            ),
            LinearMap(
                lambda v: scale**2 * q**2 @ split_heads(v, size).swapaxes(-1, -2),
                lambda w: merge_heads(scale * w.swapaxes(-1, -2) @ q),
            ),
        )

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `scaled_roundings`; or the root of 1/√d is rounded twice, where query and key are divided each."""
        own = accumulation_variance(self._squares, self.value, self._heads[0].shape[-1], arithmetic)
        return scaled_roundings(own, self.value, self.scale, arithmetic)


def scaled_roundings(own: Array, y: Array, scale: float, arithmetic: Arithmetic) -> Roundings:
    """Those of a product y with its own variance, rounded where it is a call of its own, then the scaling.

    2u |y| bounds the effect of rounding the constant.
    """
    u = arithmetic.accumulate.unit_roundoff
    variance = own + u**2 / 3.0 * y**2 + scale**2 * arithmetic.call_variance(y / scale)
    return elementwise(variance, 2.0 * u * np.abs(y))


class Context(Step):
    """c = p v a head, heads side by side: (B, h, S, S), (B, S, H) -> (B, S, H)."""

    couples_positions = True

    @cached_property
    def _values(self) -> Array:
        return split_heads(self.parents[1], self.site.architecture.head_size)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return merge_heads(self.parents[0] @ self._values)

    @cached_property
    def _squares(self) -> Array:
        """Σ s_k²."""
        return merge_heads(partial_squares(operand(self.parents[0]), operand(self._values)))

    def moved_by(self, *errors: Array | Single) -> Single:
        """e_p v + (p − e_p) e_v, in float32."""
        e_p, p, v = (x.astype(np.float32) for x in (errors[0], self.parents[0], self._values))
        e_v = split_heads(errors[1].astype(np.float32), self.site.architecture.head_size)
        return merge_heads(np.asarray(e_p @ v + (p - e_p) @ e_v, np.float32))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂c_i/∂p_ij = v_j and ∂c_i/∂v_j = p_ij."""
        p, v = self.parents[0], self._values
        size = self.site.architecture.head_size
        return (
            LinearMap(
                lambda e: merge_heads(e @ v**2),
                lambda w: split_heads(w, size) @ v.swapaxes(-1, -2),
            ),
            LinearMap(
                lambda e: merge_heads(p**2 @ split_heads(e, size)),
                lambda w: merge_heads(p.swapaxes(-1, -2) @ split_heads(w, size)),
            ),
        )

    def through(self, parent: int, errors: Errors) -> Errors:
        """Values are mixed by the probabilities."""
        return mixed(self.parents[0], errors, self.parents[1]) if parent == 1 else super().through(parent, errors)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As the module's docstring derives, accumulated over the keys."""
        return elementwise(accumulation_variance(self._squares, self.value, self.parents[0].shape[-1], arithmetic))
