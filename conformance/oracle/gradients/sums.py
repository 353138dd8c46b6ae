"""Gradients at the start of a backward pass, and gradients that are sums over tokens: those of biases and embedding tables.

w is the gradient of L with respect to the result of the forward step.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from conformance.model.activation import SCALAR
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance, in_random_order
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.embeddings import Exact, Lookup, PositionLookup, TokenTypeLookup, WordLookup
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.step import Step, elementwise_roundings

_GOLDEN_RATIO = 2654435769  # 2^32 / golden ratio, whose multiples modulo 2^32 are spread evenly (Knuth 1998, section 6.4).


def coefficients(shape: tuple[int, ...]) -> Array:
    """Return fixed, evenly spread numbers from −1 to 127/128, which every format represents exactly.

    Example:
        >>> coefficients((4,)).tolist()
        [-1.0, 0.234375, -0.53125, 0.703125]
    """
    index = np.arange(np.prod(shape, dtype=np.uint64), dtype=np.uint64)
    top = ((index * np.uint64(_GOLDEN_RATIO)) % np.uint64(2**32)) >> np.uint64(24)
    return as_array((top.astype(np.float64) - 128.0) / 128.0).reshape(shape)


class Seed(Exact, kinds=("seed",)):
    """∂L/∂x = 1 for a loss x = L; else the coefficients c of L = Σ c · x, the same in every sequence, 0 at masked positions."""

    @cached_property
    def value(self) -> Array:
        """The gradient, of the shape of x."""
        row, batch = self.site.activation, self.site.batch
        if row.axes == SCALAR:
            return np.ones(())
        fixed = coefficients(row.shape(1, batch.length, self.site.architecture.num_attention_heads, batch.states_length))
        attended = batch.mask if "position" in row.axes else batch.mask[:, 0]
        return fixed * attended[..., None]


class BiasGradient(Step, kinds=("bias_gradient",)):
    """∂L/∂b = Σ w over all tokens; w (..., O), result (O,)."""

    couples_positions = True

    @cached_property
    def _rows(self) -> Array:
        return self.parents[0].reshape(-1, self.parents[0].shape[-1])

    @cached_property
    def value(self) -> Array:
        """The gradient."""
        return as_array(self._rows.sum(0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the sum over tokens."""
        return (over_tokens(self.parents[0].shape),)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result; mixtures are summed over the tokens."""
        ones = np.ones((*self.parents[0].shape[:-1], 1), like=self.parents[0])
        summed = sum((mixture.summed(ones)[:, 0] for mixture in errors.mixtures), start=np.zeros(()))
        return super().through(parent, replace(errors, mixtures=())) + CorrelatedErrors(summed)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the sum."""
        return elementwise_roundings(summation_variance(self._rows, arithmetic))


def over_tokens(shape: tuple[int, ...]) -> LinearMap:
    """Return J e = Σ e over all axes but the last, for errors e of this shape."""
    return LinearMap(
        lambda v: np.broadcast_to(v, shape).reshape(-1, shape[-1]).sum(0), lambda u: as_array(np.broadcast_to(u, shape))
    )


def over_calls(arithmetic: Arithmetic) -> Arithmetic:
    """Return the arithmetic of a sum over tokens, for the gradient of a parameter.

    In native arithmetic, the partial sums are rounded to storage: `.grad` is added to once per call if a layer is called for a part
    of the tokens at a time, and PyTorch's layer norm on a CPU keeps partial sums in the dtype of its parameters.
    """
    return replace(arithmetic, accumulate=arithmetic.storage) if arithmetic.rounding == "native" else arithmetic


def summation_variance(rows: Array, arithmetic: Arithmetic) -> Array:
    """Return the variance of the rounding errors of a sum over rows, (R, O) -> (O,).

    The sum is treated as a product with ones (`oracle.accumulation`), or as a sum in random order if that has larger errors.
    """
    in_order = Accumulation(np.ones((1, len(rows)), like=rows), rows).squares[0]
    squares = np.maximum(in_order, in_random_order(rows.sum(0), (rows**2).sum(0), len(rows)))
    return accumulation_variance(squares, rows.sum(0), len(rows), over_calls(arithmetic))


class LookupGradient(Step):
    """∂L/∂E_r = Σ w over the positions at which row r of the table is looked up; 0 for rows that are not looked up."""

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
        """The gradient."""
        return self._scattered(self.parents[0])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that adds the errors of each position to the row that is looked up there."""
        ids, shape = self._places[0], self.parents[0].shape
        return (LinearMap(self._scattered, lambda u: u[ids].reshape(shape)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return u²/3 · Σ s_k² for the partial sums s_k of each row of the table, and the rounding to storage.

        Σ s_k² is that of the order of the positions or that of a random order, whichever is larger. Except in fused arithmetic, u
        is the unit roundoff of storage, since a kernel may accumulate in the table itself. A single term is copied, not rounded.
        """
        (ids, rows), table = self._places, self.site.parameters["weight"]
        read, place, counts = np.unique(ids, return_inverse=True, return_counts=True)  # Most rows are not looked up.
        partial, in_order, terms = (np.zeros((len(read), rows.shape[-1]), like=rows) for _ in range(3))
        np.add.at(terms, place, rows**2)
        for r, row in zip(place, rows, strict=True):
            partial[r] += row
            in_order[r] += partial[r] ** 2
        y, n = self.value[read], counts[:, None].astype(np.float64)
        coarse = arithmetic.accumulate if arithmetic.rounding == "fused" else arithmetic.storage
        variance = coarse.unit_roundoff**2 / 3.0 * np.maximum(
            in_order, in_random_order(y, terms, n)
        ) + arithmetic.storage_rounding_variance(y)
        full = np.full(table.shape, arithmetic.storage.floor_variance, like=table)
        full[read] = np.maximum(np.where(n > 1, variance, 0.0), full[read])
        return elementwise_roundings(full)


class WordLookupGradient(LookupGradient, kinds=("word_lookup_gradient",)):
    """∂L/∂E for the word embeddings E, looked up by token ids: (B, S, H) -> (V, H)."""

    lookup = WordLookup


class TokenTypeLookupGradient(LookupGradient, kinds=("token_type_lookup_gradient",)):
    """∂L/∂E for the token-type embeddings E, looked up by token types: (B, S, H) -> (T, H)."""

    lookup = TokenTypeLookup


class PositionLookupGradient(LookupGradient, kinds=("position_lookup_gradient",)):
    """∂L/∂E for the position embeddings E, looked up by positions and summed over the sequences: (B, S, H) -> (P, H)."""

    lookup = PositionLookup
