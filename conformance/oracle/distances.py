"""Relative positions in attention scores: s_ij = (q_i · k_j + q_i · D_ij [+ k_j · D_ij]) / √d, D_ij = E[i − j + P − 1].

E is a table of 2P − 1 distances a layer, the same for all heads. Without the last term Shaw, Uszkoreit and Vaswani 2018,
*Self-attention with relative position representations*, equation 5 (their distances are clipped, these are not); with it Huang,
Liang, Xu and Xiang 2020, *Improve transformer models with better relative position embeddings*, method 4. Each term is a step.
"""

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.bilinear import Factor, ScaledProduct
from conformance.oracle.embeddings import Lookup, Sum


class DistanceLookup(Lookup):
    """D_ij = E[i − j + P − 1], i the query's position and j the key's, the same for every row of the batch: (B, S, S, d)."""

    @property
    def distances(self) -> Ids:
        """(S, S): i − j."""
        positions = np.arange(self.site.batch.length)
        return np.asarray(positions[:, None] - positions[None, :])

    @property
    def ids(self) -> Ids:
        """(S, S): the distances, counted from the least."""
        return self.distances + (len(self.site.parameters["weight"]) - 1) // 2

    @cached_property
    def value(self) -> Array:
        """Rows of the distance table."""
        rows = self.site.parameters["weight"][self.ids]
        return np.broadcast_to(rows, (self.site.batch.size, *rows.shape))


class QueryDistanceScores(ScaledProduct):
    """r_ij = q_i · D_ij / √d a head: (B, S, H), (B, S, S, d) -> (B, h, S, S)."""

    left, right, result = Factor(0, "by token"), Factor(1, "as it is", transposed=True), "by query"


class KeyDistanceScores(ScaledProduct):
    """r_ij = k_j · D_ij / √d a head, of the same shapes."""

    left, right, result = Factor(0, "by token"), Factor(1, "distances by key", transposed=True), "by key"


class ScoresSum(Sum):
    """The scores: the sum of their terms, (B, h, S, S)."""
