"""Table look-ups, copies and sums: the steps before any product."""

from abc import abstractmethod
from itertools import combinations

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.maps import Roundings
from conformance.oracle.step import Step, elementwise


def positions(step: Step) -> Ids:
    """(S,): the position ids of every row, from the architecture's `position_offset` on; (B, S) where the batch gives them."""
    if step.site.batch.position_ids is not None:
        return step.site.batch.position_ids
    return step.site.architecture.position_offset + np.arange(step.site.batch.length)


class Exact(Step):
    """A step that moves numbers and computes none: no rounding at all."""

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """None: zero variance; the judge compares bit for bit."""
        return elementwise(np.zeros_like(self.value))


class Lookup(Exact):
    """Rows of a table, by ids that broadcast to (B, S)."""

    @property
    @abstractmethod
    def ids(self) -> Ids:
        """Which rows."""


class WordLookup(Lookup):
    """E[input_ids]: (B, S) -> (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The token ids."""
        return self.site.batch.input_ids

    @cached_property
    def value(self) -> Array:
        """Rows of the word table."""
        return self.site.parameters["weight"][self.ids]


class TokenTypeLookup(Lookup):
    """E[token_type_ids]: (B, S) -> (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The token types."""
        return self.site.batch.types

    @cached_property
    def value(self) -> Array:
        """Rows of the token-type table."""
        return self.site.parameters["weight"][self.ids]


class PositionLookup(Lookup):
    """E[o..o+S-1], o the architecture's `position_offset`, the same for every row, or of the batch's position ids: (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The positions."""
        return positions(self)

    @cached_property
    def value(self) -> Array:
        """Rows of the position table."""
        rows = self.site.parameters["weight"][self.ids]
        return np.broadcast_to(rows, (self.site.batch.size, *rows.shape[-2:]))


class EncoderStates(Exact):
    """The encoder's states that a decoder attends to: (B, T, H), given with the batch."""

    @property
    def value(self) -> Array:
        """As they are given."""
        states = self.site.batch.encoder_hidden_states
        assert states is not None
        return states


class Copy(Exact):
    """Identity: dropout in eval mode."""

    @property
    def value(self) -> Array:
        """The parent."""
        return self.parents[0]


class Sinusoids(Step):
    """PE[s, 2i] = sin(s / 10000^(2i/H)), PE[s, 2i+1] = cos(s / 10000^(2i/H)); Vaswani et al. 2017, section 3.5."""

    @cached_property
    def _angles(self) -> Array:
        width = self.site.architecture.hidden_size
        pair = np.arange(width) // 2
        return positions(self)[..., None] / 10000.0 ** (2 * pair / width)

    @cached_property
    def value(self) -> Array:
        """(B, S, H)."""
        even = np.arange(self._angles.shape[-1]) % 2 == 0
        waves = np.where(even, np.sin(self._angles), np.cos(self._angles))
        return np.broadcast_to(waves, (self.site.batch.size, *waves.shape[-2:]))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The angle s · exp(c) carries the relative error of an exponent of size up to ln 10000, of exp and of a product.

        δ(sin t) = cos(t) δt with δt/t ≤ u · (ln 10000 · 2 + 1) + exp's relative error, plus one rounding of the result.
        """
        u = arithmetic.elementwise.unit_roundoff
        relative = u * (2 * np.log(10000.0) + 1) + arithmetic.functions.relative("exp", arithmetic.elementwise)
        variance = arithmetic.storage.rounding_variance(self.value)
        return elementwise(variance, np.broadcast_to(relative * np.abs(self._angles), self.value.shape))


class Sum(Step):
    """The sum of the parents, left to right."""

    @cached_property
    def value(self) -> Array:
        """Elementwise sum."""
        return np.asarray(sum(self.parents[1:], start=self.parents[0]))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `sum_variance`, and the store."""
        own = sum_variance(self.parents, arithmetic)
        return elementwise(np.maximum(own, arithmetic.storage.rounding_variance(self.value)))


def sum_variance(parents: tuple[Array, ...], arithmetic: Arithmetic) -> Array:
    """Variance of adding up n parents: u²/3 · partial², one term an addition, in whichever order.

    The order is not known, so of the sums of k terms, 2 ≤ k ≤ n, the largest is taken, element by element. Sums that leave a call
    are rounded to storage as well.
    """
    u, variance = arithmetic.elementwise.unit_roundoff, np.zeros_like(parents[0])
    for count in range(2, len(parents) + 1):
        partial = np.max([np.abs(sum(some[1:], start=some[0])) for some in combinations(parents, count)], axis=0)
        variance = variance + u**2 / 3.0 * partial**2 + arithmetic.call_variance(partial)
    return variance
