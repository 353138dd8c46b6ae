"""How well the network does on a batch or on several."""

import sys
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest


@dataclass(frozen=True)
class Scores:
    """Losses and correct predictions.

    Attributes:
        masked_lm_loss, next_sentence_loss: the two losses, in nats, whose sum is minimised.
        masked_lm_correct, masked_lm_count: of the tokens that have a label, those whose label is the likeliest, and all.
        next_sentence_correct, next_sentence_count: the same of the pairs.
    """

    masked_lm_loss: float
    next_sentence_loss: float
    masked_lm_correct: int
    masked_lm_count: int
    next_sentence_correct: int
    next_sentence_count: int

    @property
    def masked_lm_accuracy(self) -> float:
        """Correct tokens over tokens that have a label."""
        return self.masked_lm_correct / self.masked_lm_count

    @property
    def next_sentence_accuracy(self) -> float:
        """Correct pairs over pairs."""
        return self.next_sentence_correct / self.next_sentence_count

    @property
    def p_value(self) -> float:
        """The probability that guesses classify as many pairs correctly: a one-sided exact binomial test.

        Each label is a fair coin of its own, also where a pair was seen before: while predictions say nothing about labels, the
        number of correct ones is binomial.
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
    """Those of several batches: the mean of the losses, each batch weighted alike, and the sums of the counts."""
    rows = [(s.masked_lm_correct, s.masked_lm_count, s.next_sentence_correct, s.next_sentence_count) for s in scores]
    return Scores(
        float(np.mean([s.masked_lm_loss for s in scores])),
        float(np.mean([s.next_sentence_loss for s in scores])),
        *(int(n) for n in np.sum(rows, 0)),
    )
