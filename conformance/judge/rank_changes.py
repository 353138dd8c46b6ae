"""Which pairs of texts change rank between two systems, by cosine similarity, and whether rounding explains it.

Two pairs p and q change order where c_p − c_q has another sign in one system than in the other. Let Δ be the error of A's cosine
less that of B's; an error is c − s, with s the oracle's in the system's own format. Where each of the four cosines is within its
limit,

    |Δ_p − Δ_q| ≤ L_p + L_q,   L the sum of both systems' limits

and rounding explains the change of order. A pair's rank is explained where all of its changes of order are.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.cosines import Cosines


@dataclass(frozen=True)
class RankChange:
    """A pair of texts that changes order with others.

    Attributes:
        texts: their numbers, from 0.
        cosines: in A and in B.
        ranks: in A and in B, 1 the most similar.
        discordant: with how many pairs it changes order.
        unexplained: with how many of these rounding does not explain it.
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
    """Two systems on the same texts.

    Attributes:
        pairs: how many pairs of texts.
        tau: Kendall's τ_a: pairs of pairs in the same order less those in opposite order, over all (Kendall 1938).
        discordant: how many pairs of pairs change order.
        unexplained: how many of these changes rounding does not explain.
        excess: of A and of B, the largest error of a cosine against the oracle's over its limit.
        changes: each pair that changes order, the least explained first.
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
