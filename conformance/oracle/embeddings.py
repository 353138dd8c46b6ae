"""Table look-ups, copies and sums: the steps without matrix products.

Relative positions in attention scores: s_ij = (q_i · k_j + q_i · D_ij [+ k_j · D_ij]) / √d, D_ij = E[i − j + P − 1].

Each layer has a table E of 2P − 1 distance embeddings, shared by all heads. Without the last term, the equation is that of Shaw,
Uszkoreit and Vaswani 2018, *Self-attention with relative position representations*, equation 5 (they clip distances; here
distances are not clipped). With the last term, it is method 4 of Huang, Liang, Xu and Xiang 2020, *Improve transformer models
with better relative position embeddings*. Each term is a step.
"""

from abc import abstractmethod
from typing import Any

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.bilinear import Factor, ScaledProduct
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.program import added
from conformance.oracle.step import ProgramStep, Step, elementwise_roundings


def positions(step: Step) -> Ids:
    """Return the position ids of a step's batch.

    They are (S,), counted from the architecture's `position_offset`, or the batch's own (B, S) if it gives them.
    """
    if step.site.batch.position_ids is not None:
        return step.site.batch.position_ids
    return step.site.architecture.position_offset + np.arange(step.site.batch.length)


class Exact(Step):
    """A step that moves numbers without computing, and therefore makes no rounding errors."""

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return zero variance; the judge compares such a step bit for bit."""
        return elementwise_roundings(np.zeros_like(self.value))


class Lookup(Exact):
    """Rows of a table, selected by ids that broadcast to (B, S)."""

    @property
    @abstractmethod
    def ids(self) -> Ids:
        """The indices of the selected rows."""

    @cached_property
    def value(self) -> Array:
        """The selected rows, (B, S, H)."""
        return self.site.parameters["weight"][self.ids]


class WordLookup(Lookup, kinds=("word_lookup",)):
    """E[input_ids]: (B, S) -> (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The token ids, (B, S)."""
        return self.site.batch.input_ids


class TokenTypeLookup(Lookup, kinds=("token_type_lookup",)):
    """E[token_type_ids]: (B, S) -> (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The token type ids, (B, S)."""
        return self.site.batch.types


class PositionLookup(Lookup, kinds=("position_lookup",)):
    """E[o..o+S-1] for every row, o the architecture's `position_offset`; or E[position_ids] if the batch has them: (B, S, H)."""

    @property
    def ids(self) -> Ids:
        """The position ids, (S,) or (B, S)."""
        return positions(self)

    @cached_property
    def value(self) -> Array:
        """The selected rows of the position table, (B, S, H)."""
        rows = self.site.parameters["weight"][self.ids]
        return np.broadcast_to(rows, (self.site.batch.size, *rows.shape[-2:]))


class EncoderStates(Exact, kinds=("encoder_states",)):
    """The encoder's hidden states that a decoder attends to, given with the batch: (B, T, H)."""

    @property
    def value(self) -> Array:
        """The states as given with the batch."""
        states = self.site.batch.encoder_hidden_states
        assert states is not None
        return states


class Copy(Exact, kinds=("copy",)):
    """The identity, such as dropout in eval mode."""

    @property
    def value(self) -> Array:
        """The parent."""
        return self.parents[0]


class Sinusoids(Step, kinds=("sinusoids",)):
    """PE[s, 2i] = sin(s / 10000^(2i/H)), PE[s, 2i+1] = cos(s / 10000^(2i/H)); Vaswani et al. 2017, section 3.5."""

    @cached_property
    def _angles(self) -> Array:
        width = self.site.architecture.hidden_size
        pair = np.arange(width) // 2
        return positions(self)[..., None] / 10000.0 ** (2 * pair / width)

    @cached_property
    def value(self) -> Array:
        """The sinusoidal position embeddings, (B, S, H)."""
        even = np.arange(self._angles.shape[-1]) % 2 == 0
        waves = np.where(even, np.sin(self._angles), np.cos(self._angles))
        return np.broadcast_to(waves, (self.site.batch.size, *waves.shape[-2:]))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding of the result (random) and the error of the angle (bound).

        The angle s · exp(c) has the relative error of an exponent of magnitude up to ln 10000, of exp, and of a product:
        δ(sin t) = cos(t) δt with δt/t ≤ u · (ln 10000 · 2 + 1) + exp's relative error.
        """
        u = arithmetic.elementwise_format.unit_roundoff
        relative = u * (2 * np.log(10000.0) + 1) + arithmetic.functions.relative("exp", arithmetic.elementwise_format)
        variance = arithmetic.storage.rounding_variance(self.value)
        return elementwise_roundings(variance, np.broadcast_to(relative * np.abs(self._angles), self.value.shape))


class Sum(ProgramStep, kinds=("sum",)):
    """The sum of the parents, from left to right; rounding errors are those of any order."""

    def program(self, *parents: Any) -> Any:
        """Return the elementwise sum."""
        return added(*parents)

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of rounding the result to storage, unless this is the rounding of the last addition."""
        return arithmetic.storage_rounding_variance(self.value) if arithmetic.rounding == "fused" else 0.0

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of additions from left to right alone, of which a library call rounds the last to storage."""
        u2, partial, variance = arithmetic.elementwise_format.unit_roundoff**2 / 3.0, self.parents[0], np.zeros_like(self.value)
        for parent in self.parents[1:]:
            partial = partial + parent
            variance += u2 * np.square(partial)
        return elementwise_roundings(np.maximum(variance, arithmetic.storage.rounding_variance(self.value), out=variance))


class DistanceLookup(Lookup, kinds=("distance_lookup",)):
    """D_ij = E[i − j + P − 1] for query position i and key position j, the same for every row of the batch: (B, S, S, d)."""

    @property
    def distances(self) -> Ids:
        """The distances i − j, (S, S)."""
        positions = np.arange(self.site.batch.length)
        return as_array(positions[:, None] - positions[None, :])

    @property
    def ids(self) -> Ids:
        """The row of the table for each distance, (S, S): the distance plus P − 1."""
        return self.distances + (len(self.site.parameters["weight"]) - 1) // 2

    @cached_property
    def value(self) -> Array:
        """The looked-up rows of the distance table, (B, S, S, d)."""
        rows = self.site.parameters["weight"][self.ids]
        return np.broadcast_to(rows, (self.site.batch.size, *rows.shape))


class QueryDistanceScores(ScaledProduct, kinds=("query_distance_scores",)):
    """r_ij = q_i · D_ij / √d for each head: (B, S, H), (B, S, S, d) -> (B, h, S, S)."""

    left, right, result = Factor(0, "by token"), Factor(1, "as it is", transposed=True), "by query"


class KeyDistanceScores(ScaledProduct, kinds=("key_distance_scores",)):
    """r_ij = k_j · D_ij / √d for each head: (B, S, H), (B, S, S, d) -> (B, h, S, S)."""

    left, right, result = Factor(0, "by token"), Factor(1, "distances by key", transposed=True), "by key"


class ScoresSum(Sum, kinds=("scores_sum",)):
    """The attention scores as the sum of their terms, (B, h, S, S)."""
