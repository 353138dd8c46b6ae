"""Relative positions in attention scores: s_ij = (q_i · k_j + q_i · D_ij [+ k_j · D_ij]) / √d, D_ij = E[i − j + P − 1].

Each layer has a table E of 2P − 1 distance embeddings, shared by all heads. Without the last term, the equation is that of Shaw,
Uszkoreit and Vaswani 2018, *Self-attention with relative position representations*, equation 5 (they clip distances; here
distances are not clipped). With the last term, it is method 4 of Huang, Liang, Xu and Xiang 2020, *Improve transformer models
with better relative position embeddings*. Each term is a step.
"""

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.bilinear import Factor, ScaledProduct
from conformance.oracle.embeddings import Lookup, Sum


class DistanceLookup(Lookup):
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


class QueryDistanceScores(ScaledProduct):
    """r_ij = q_i · D_ij / √d for each head: (B, S, H), (B, S, S, d) -> (B, h, S, S)."""

    left, right, result = Factor(0, "by token"), Factor(1, "as it is", transposed=True), "by query"


class KeyDistanceScores(ScaledProduct):
    """r_ij = k_j · D_ij / √d for each head: (B, S, H), (B, S, S, d) -> (B, h, S, S)."""

    left, right, result = Factor(0, "by token"), Factor(1, "distances by key", transposed=True), "by key"


class ScoresSum(Sum):
    """The attention scores as the sum of their terms, (B, h, S, S)."""
