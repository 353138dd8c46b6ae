"""Changes of rank, by cosine similarity, of pairs of texts between two systems, and whether rounding explains them.

Two pairs p and q change order if the sign of c_p − c_q differs between the systems. Let Δ be the error of A's cosine minus that of
B's; an error is c − s, with s the oracle's cosine in the system's own format. If each of the four cosines is within its limit,

    |Δ_p − Δ_q| ≤ L_p + L_q,   L the sum of both systems' limits

and rounding explains the change of order. A pair's rank is explained if all of its changes of order are.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.cosines import Cosines


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
