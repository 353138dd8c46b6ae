"""Where a backward pass starts, and gradients that are sums over tokens: of biases and of tables."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from conformance.model.activation import SCALAR
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance
from conformance.oracle.carried import Errors
from conformance.oracle.embeddings import Exact, Lookup, PositionLookup, TokenTypeLookup, WordLookup
from conformance.oracle.maps import LinearMap, Roundings
from conformance.oracle.step import Step, elementwise

_GOLDEN_RATIO = 2654435769  # 2^32 divided by it: multiples of it are spread evenly (Knuth 1998, section 6.4)


def coefficients(shape: tuple[int, ...]) -> Array:
    """Fixed numbers from −1 to 127/128 that every format holds exactly, unlike from place to place.

    Example:
        >>> coefficients((4,)).tolist()
        [-1.0, 0.234375, -0.53125, 0.703125]
    """
    index = np.arange(np.prod(shape, dtype=np.uint64), dtype=np.uint64)
    top = ((index * np.uint64(_GOLDEN_RATIO)) % np.uint64(2**32)) >> np.uint64(24)
    return np.asarray((top.astype(np.float64) - 128.0) / 128.0).reshape(shape)


class Seed(Exact):
    """1 for a loss; else the coefficients c of L = Σ c · x, the same in every sequence, 0 at what is not attended to."""

    @cached_property
    def value(self) -> Array:
        """As described."""
        row, batch = self.site.activation, self.site.batch
        if row.axes == SCALAR:
            return np.ones(())
        fixed = coefficients(row.shape(1, batch.length, self.site.architecture.num_attention_heads, batch.states_length))
        attended = batch.mask if "position" in row.axes else batch.mask[:, 0]
        return fixed * attended[..., None]


class BiasGradient(Step):
    """∂L/∂b = Σ w over all tokens; w (..., O), result (O,)."""

    couples_positions = True

    @cached_property
    def _rows(self) -> Array:
        return self.parents[0].reshape(-1, self.parents[0].shape[-1])

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self._rows.sum(0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """A sum."""
        return (over_tokens(self.parents[0].shape),)

    def through(self, parent: int, errors: Errors) -> Errors:
        """Mixtures are summed."""
        ones = np.ones((*self.parents[0].shape[:-1], 1))
        summed = sum((mixture.summed(ones)[:, 0] for mixture in errors.mixtures), start=np.zeros(()))
        return super().through(parent, replace(errors, mixtures=())) + Errors(summed)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of the sum."""
        return elementwise(summation_variance(self._rows, arithmetic))


def over_tokens(shape: tuple[int, ...]) -> LinearMap:
    """J e = Σ e over all axes but the last, of arrays of that shape."""
    return LinearMap(
        lambda v: np.broadcast_to(v, shape).reshape(-1, shape[-1]).sum(0), lambda u: np.asarray(np.broadcast_to(u, shape))
    )


def summation_variance(rows: Array, arithmetic: Arithmetic) -> Array:
    """Of a sum over rows, (R, O) -> (O,): a product with ones (`oracle.accumulation`), or in random order if that is more."""
    in_order = Accumulation(np.ones((1, len(rows))), rows).squares[0]
    squares = np.maximum(in_order, _at_random(np.float64(len(rows)), rows.sum(0), (rows**2).sum(0)))
    return accumulation_variance(squares, rows.sum(0), len(rows), arithmetic)


def _at_random(n: Array | np.float64, y: Array, squares: Array) -> Array:
    """The mean over all orders of Σ s_k², s_k the partial sums of n terms with the sum y and these squares, added up.

    E s_k² = k²/n² y² + k (n − k)/(n (n − 1)) (Σ t² − y²/n), which add up to
    y² (n + 1)(2n + 1)/(6n) + (n + 1)/6 (Σ t² − y²/n).
    """
    some = np.maximum(n, 1.0)
    return np.asarray((n + 1.0) / 6.0 * ((2.0 * n + 1.0) * y**2 / some + np.maximum(squares - y**2 / some, 0.0)))


def kernel_summation_variance(rows: Array, arithmetic: Arithmetic) -> Array:
    """The same within a kernel of other things, which may keep partial sums in storage: a native one.

    PyTorch's layer norm does so on a CPU: its buffers of partial sums have the dtype of the parameters.
    """
    if arithmetic.rounding == "native":
        arithmetic = replace(arithmetic, accumulate=arithmetic.storage)
    return summation_variance(rows, arithmetic)


class NormBiasGradient(BiasGradient):
    """∂L/∂β = Σ w over all tokens; w (..., H), result (H,)."""

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of the sum, within the kernel that computes the other gradients of the norm."""
        return elementwise(kernel_summation_variance(self._rows, arithmetic))


class LookupGradient(Step):
    """∂L/∂E_r: the sum of w over the places at which row r is looked up, 0 for the other rows."""

    couples_positions = True

    lookup: ClassVar[type[Lookup]]

    @cached_property
    def _places(self) -> tuple[Ids, Array]:
        w, ids = self.parents[0], self.lookup(self.site).ids
        return np.broadcast_to(ids, w.shape[:-1]).reshape(-1), w.reshape(-1, w.shape[-1])

    def _scattered(self, x: Array) -> Array:
        table, (ids, rows) = np.zeros_like(self.site.parameters["weight"]), self._places
        np.add.at(table, ids, np.broadcast_to(x, self.parents[0].shape).reshape(rows.shape))
        return table

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self._scattered(self.parents[0])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Each place to its row."""
        ids, shape = self._places[0], self.parents[0].shape
        return (LinearMap(self._scattered, lambda u: u[ids].reshape(shape)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """u²/3 · Σ s_k² over the partial sums of a row of the table, in the order of the places or a random one, the larger.

        A kernel that adds in the table itself rounds each partial sum to storage. A single term is moved, not rounded.
        """
        (ids, rows), table = self._places, self.site.parameters["weight"]
        read, place, counts = np.unique(ids, return_inverse=True, return_counts=True)  # the other rows, most of them, are 0
        partial, in_order, terms = (np.zeros((len(read), rows.shape[-1])) for _ in range(3))
        np.add.at(terms, place, rows**2)
        for r, row in zip(place, rows, strict=True):
            partial[r] += row
            in_order[r] += partial[r] ** 2
        y, n = self.value[read], counts[:, None].astype(np.float64)
        coarse = arithmetic.accumulate if arithmetic.rounding == "fused" else arithmetic.storage
        variance = coarse.unit_roundoff**2 / 3.0 * np.maximum(in_order, _at_random(n, y, terms)) + arithmetic.store_variance(y)
        full = np.full(table.shape, arithmetic.storage.floor_variance)
        full[read] = np.maximum(np.where(n > 1, variance, 0.0), full[read])
        return elementwise(full)


class WordLookupGradient(LookupGradient):
    """Rows by token ids: (B, S, H) -> (V, H)."""

    lookup = WordLookup


class TokenTypeLookupGradient(LookupGradient):
    """Rows by token types: (B, S, H) -> (T, H)."""

    lookup = TokenTypeLookup


class PositionLookupGradient(LookupGradient):
    """Rows by positions, summed over the sequences: (B, S, H) -> (P, H)."""

    lookup = PositionLookup
