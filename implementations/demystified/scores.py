"""Scores of the network on one or several batches."""

import sys
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest


@dataclass(frozen=True)
class Scores:
    """Losses and numbers of correct predictions.

    Attributes:
        masked_lm_loss, next_sentence_loss: the two losses, in nats, whose sum is minimised.
        masked_lm_correct, masked_lm_count: number of labelled tokens that are predicted correctly, and of all labelled tokens.
        next_sentence_correct, next_sentence_count: number of pairs that are classified correctly, and of all pairs.
    """

    masked_lm_loss: float
    next_sentence_loss: float
    masked_lm_correct: int
    masked_lm_count: int
    next_sentence_correct: int
    next_sentence_count: int

    @property
    def masked_lm_accuracy(self) -> float:
        """The fraction of labelled tokens that are predicted correctly."""
        return self.masked_lm_correct / self.masked_lm_count

    @property
    def next_sentence_accuracy(self) -> float:
        """The fraction of pairs that are classified correctly."""
        return self.next_sentence_correct / self.next_sentence_count

    @property
    def p_value(self) -> float:
        """The probability that guessing classifies at least as many pairs correctly: a one-sided exact binomial test.

        Each label is an independent fair coin, also for a pair that was seen before. If predictions are independent of the labels,
        the number of correct ones is therefore binomial.
        """
        found = binomtest(self.next_sentence_correct, self.next_sentence_count, 0.5, alternative="greater")
        return float(found.pvalue)

    def __str__(self) -> str:
        p = f"p = {self.p_value:.2g}" if self.p_value else f"p < {sys.float_info.min:.0e}"
        return (
            f"masked-LM loss {self.masked_lm_loss:.3f}, {self.masked_lm_accuracy:.1%} right; next-sentence loss "
            f"{self.next_sentence_loss:.3f}, {self.next_sentence_correct} of {self.next_sentence_count} right ({p})"
        )


def together(scores: Collection[Scores]) -> Scores:
    """Return the scores over several batches: the unweighted mean of the losses, and the sums of the counts."""
    rows = [(s.masked_lm_correct, s.masked_lm_count, s.next_sentence_correct, s.next_sentence_count) for s in scores]
    return Scores(
        float(np.mean([s.masked_lm_loss for s in scores])),
        float(np.mean([s.next_sentence_loss for s in scores])),
        *(int(n) for n in np.sum(rows, 0)),
    )
