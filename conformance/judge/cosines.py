"""Cosine similarities of the sentence embeddings of a batch, each with the largest error that rounding explains.

The errors n of u and m of v change the cosine s = û·v̂ (a hat: divided by its length) by

    Δs = g·n + h·m + e/2,   g = ∂s/∂u = (v̂ − s û)/|u|,   h = ∂s/∂v = (û − s v̂)/|v|,   |e| ≤ (|n⊥|/|u| + |m⊥|/|v|)²

up to third order, with n⊥ perpendicular to u: cos(θ + δ) differs from cos θ by at most |δ sin θ| + δ²/2. For nearly identical texts
the gradients vanish and e remains. The variance of g·n is that of every rounding since the token ids, projected with all
correlations. Different rows are not assumed to be independent, because texts that share tokens share roundings.

Changes of rank, by cosine similarity, of pairs of texts between two systems, and whether rounding explains them.

Two pairs p and q change order if the sign of c_p − c_q differs between the systems. Let Δ be the error of A's cosine minus that of
B's; an error is c − s, with s the oracle's cosine in the system's own format. If each of the four cosines is within its limit,

    |Δ_p − Δ_q| ≤ L_p + L_q,   L the sum of both systems' limits

and rounding explains the change of order. A pair's rank is explained if all of its changes of order are.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.segment import Segment
from conformance.judge.threads import cores, on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import FORMATS, Array, as_array
from conformance.numerics.thresholds import projection_threshold, sidak_share
from conformance.oracle import Network
from conformance.progress import report_progress

EMBEDDING = "sentence_embedding"
SYSTEMS = 2  # systems that are compared and share the false-alarm probability
PROBES = 32  # normal directions z: zᵀCz has mean tr C and variance 2|C|²; its root has a relative deviation of 1/√(2·31)


@dataclass(frozen=True, eq=False)
class Cosines:
    """The cosines of N embeddings, as (N, N) arrays.

    Attributes:
        actual: the cosines of a system's embeddings, computed in float64.
        expected: the oracle's cosines.
        allowed: the largest |actual − expected| that rounding explains.
    """

    actual: Array
    expected: Array
    allowed: Array


@dataclass(frozen=True, eq=False)
class RoundedCosines:
    """The oracle's embeddings, with the statistics of their rounding errors that the cosines depend on.

    Attributes:
        embeddings: (N, H), the oracle's embeddings.
        variance: (N, N), the variance of g·n for the errors n of the row's embedding.
        trace, norm: (N,), trace and Frobenius norm of the covariance C of n⊥/|u|.
    """

    embeddings: Array
    variance: Array
    trace: Array
    norm: Array

    @classmethod
    def of(cls, network: Network, hypothesis: Hypothesis) -> "RoundedCosines":
        """Return the statistics for a network's sentence embeddings under a hypothesis; one sweep per ordered pair of rows."""
        embeddings = next(value for name, value in network.walk() if name == EMBEDDING)
        probes = np.random.default_rng(0).standard_normal((PROBES, embeddings.shape[1]))

        def swept(row: int) -> Array:
            length = int(np.flatnonzero(network.batch.mask[row])[-1]) + 1
            segment = Segment(network.cut(slice(row, row + 1), length), EMBEDDING, {})
            directions = np.concatenate([_gradients(embeddings, row), _perpendicular(embeddings[row], probes)])
            return np.array([segment.directional_variance(direction[None], hypothesis) for direction in directions])

        rows, found = range(len(embeddings)), []
        for start in rows[:: cores()]:
            report_progress(f"rounding of text {start + 1} of {len(rows)}", start / len(rows))
            found += on_all_cores(swept, rows[start : start + cores()])
        along, probed = np.split(np.array(found), [len(embeddings)], 1)
        return cls(embeddings, along, probed.mean(1), probed.std(1, ddof=1) / np.sqrt(2.0))

    def with_printing(self, variance: Array) -> "RoundedCosines":
        """Return a copy in which each embedding element has an additional independent error of the given variance, (N, H)."""
        more = [_gradients(self.embeddings, row) ** 2 @ variance[row] for row in range(len(self.embeddings))]
        squares = (self.embeddings**2).sum(1)
        trace, norm = self.trace + variance.sum(1) / squares, self.norm + np.linalg.norm(variance, axis=1) / squares
        return replace(self, variance=self.variance + np.array(more), trace=trace, norm=norm)

    def judge(self, embeddings: Array) -> Cosines:
        """Return the cosines of a system's embeddings, the oracle's, and the allowed differences.

        Each g·n and each |n⊥| has a share of the false-alarm probability: N(N − 1) projections and N norms of each system. Each
        cosine is computed in float64, with an error of at most 2Hu: a product of H terms and two norms, of H/2 each since a root
        halves them (Higham 2002, section 3.1).
        """
        count, width = embeddings.shape
        alpha = sidak_share(SYSTEMS * count**2)
        deviation, turn = np.sqrt(self.variance), self._largest_turn(alpha)
        allowed = projection_threshold(alpha) * (deviation + deviation.T) + (turn[:, None] + turn) ** 2 / 2.0
        return Cosines(cosines(embeddings), cosines(self.embeddings), allowed + 2 * 2 * width * FORMATS["float64"].unit_roundoff)

    def _largest_turn(self, alpha: float) -> Array:
        """Return, as (N,), the largest |n⊥|/|u| at false-alarm probability alpha, √(tr C + 2|C|√x + 2|C|x) with x = ln 1/α.

        The bound is theorem 2.1 of Hsu, Kakade and Zhang 2012, *A tail inequality for quadratic forms of subgaussian random
        vectors*, with the Frobenius norm in place of the spectral norm, which is no larger. Trace and norm are estimated from
        `PROBES` directions, so alpha holds to within the errors of these estimates. The margin is smallest if the noise has one
        direction, where both norms are equal: there the bound is √(1 + 1/√x + 1/(2x)) times the normal distribution's, 12 % more
        at x = 20.
        """
        x = math.log(1.0 / alpha)
        return as_array(np.sqrt(self.trace + 2.0 * self.norm * (math.sqrt(x) + x)))


def cosines(embeddings: Array) -> Array:
    """Return the cosine similarities u·v / (|u| |v|) of all pairs of rows; (N, H) -> (N, N)."""
    units = _units(embeddings)
    return as_array(units @ units.T)


def _units(x: Array) -> Array:
    return as_array(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _gradients(embeddings: Array, row: int) -> Array:
    """Return ∂s/∂u of the row's embedding u, (N, H), for its cosine s with each embedding; 0 for itself."""
    return _perpendicular(embeddings[row], _units(embeddings))


def _perpendicular(u: Array, directions: Array) -> Array:
    """Return the part of each direction that is perpendicular to u, divided by |u|; (K, H)."""
    unit = _units(u)
    return as_array((directions - np.outer(directions @ unit, unit)) / np.linalg.norm(u))


@dataclass(frozen=True)
class RankChange:
    """A pair of texts that changes order with other pairs.

    Attributes:
        texts: indices of the texts, from 0.
        cosines: cosine similarity in A and in B.
        ranks: rank in A and in B; 1 is the most similar pair.
        discordant: number of pairs with which it changes order.
        unexplained: number of these changes that rounding does not explain.
        excess: the largest |Δ_p − Δ_q| / (L_p + L_q) among these pairs; rounding explains up to 1.
    """

    texts: tuple[int, int]
    cosines: tuple[float, float]
    ranks: tuple[int, int]
    discordant: int
    unexplained: int
    excess: float


@dataclass(frozen=True)
class RankComparison:
    """The comparison of two systems on the same texts.

    Attributes:
        pairs: number of pairs of texts.
        tau: Kendall's τ_a: pairs of pairs in the same order minus those in opposite order, divided by all (Kendall 1938).
        discordant: number of pairs of pairs that change order.
        unexplained: number of these changes that rounding does not explain.
        excess: for A and for B, the largest ratio of a cosine's error against the oracle to its limit.
        changes: the pairs that change order, least explained first.
    """

    pairs: int
    tau: float
    discordant: int
    unexplained: int
    excess: tuple[float, float]
    changes: tuple[RankChange, ...]

    @property
    def explained(self) -> bool:
        """Whether rounding explains every change."""
        return not self.unexplained


def compare_ranks(a: Cosines, b: Cosines) -> RankComparison:
    """Compare the order of all pairs of texts under two systems."""
    pairs = np.triu_indices(len(a.actual), 1)
    cosines = np.array([a.actual[pairs], b.actual[pairs]])
    errors = cosines - [a.expected[pairs], b.expected[pairs]]
    limits = np.array([a.allowed[pairs], b.allowed[pairs]])
    difference, limit = errors[0] - errors[1], limits.sum(0)
    ranks = 1 + np.argsort(np.argsort(-cosines, 1, kind="stable"), 1)
    changes, balance = [], 0.0
    for p, texts in enumerate(zip(*pairs, strict=True)):
        order = np.prod(np.sign(cosines[:, [p]] - cosines), 0)
        balance += order.sum()
        discordant = order < 0.0
        if discordant.any():
            excess = np.abs(difference[p] - difference[discordant]) / (limit[p] + limit[discordant])
            changes.append(
                RankChange(
                    (int(texts[0]), int(texts[1])),
                    (float(cosines[0, p]), float(cosines[1, p])),
                    (int(ranks[0, p]), int(ranks[1, p])),
                    int(discordant.sum()),
                    int((excess > 1.0).sum()),
                    float(excess.max()),
                )
            )
    count, (worst_a, worst_b) = len(difference), (np.abs(errors) / limits).max(1)
    return RankComparison(
        count,
        float(balance / (count * (count - 1))),
        sum(c.discordant for c in changes) // 2,  # each is found from both of its pairs
        sum(c.unexplained for c in changes) // 2,
        (float(worst_a), float(worst_b)),
        tuple(sorted(changes, key=lambda c: -c.excess)),
    )
