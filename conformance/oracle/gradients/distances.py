"""Gradients of relative positions in attention scores, with respect to queries, keys, distance embeddings and their table."""

from conformance.oracle.bilinear import Factor
from conformance.oracle.distances import DistanceLookup
from conformance.oracle.gradients.products import ScaledBackward
from conformance.oracle.gradients.sums import LookupGradient


class QueryDistanceBackwardQuery(ScaledBackward):
    """∂L/∂q_i = Σ_j w_ij D_ij / √d; w (B, h, S, S), D (B, S, S, d), result (B, S, H)."""

    left, right, result = Factor(0, "by query"), Factor(1, "as it is"), "by token"


class QueryDistanceBackwardDistance(ScaledBackward):
    """∂L/∂D_ij = Σ w_ij q_i / √d over heads; w (B, h, S, S), q (B, S, H), result (B, S, S, d)."""

    left, right = Factor(0, "by query", transposed=True), Factor(1, "by token")


class KeyDistanceBackwardKey(ScaledBackward):
    """∂L/∂k_j = Σ_i w_ij D_ij / √d; w (B, h, S, S), D (B, S, S, d), result (B, S, H)."""

    left, right, result = Factor(0, "by key"), Factor(1, "distances by key"), "by token"


class KeyDistanceBackwardDistance(ScaledBackward):
    """∂L/∂D_ij = Σ w_ij k_j / √d over heads; w (B, h, S, S), k (B, S, H), result (B, S, S, d)."""

    left, right, result = Factor(0, "by key", transposed=True), Factor(1, "by token"), "distances by key"


class DistanceLookupGradient(LookupGradient):
    """The gradient of the distance table, summed over the positions of each distance: (B, S, S, d) -> (2P − 1, d)."""

    lookup = DistanceLookup
