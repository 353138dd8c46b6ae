"""Scores of the network on batches, and the page of their curves: a point for each step and a line for the mean over fifty."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import Environment
from scipy.stats import binomtest

LAST = 50  # number of steps averaged, in the progress bar and on the page
_WIDTH, _HEIGHT = 720, 200

_TEMPLATE = Environment(autoescape=True).from_string("""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Pre-training</title>
<style>body{font:16px sans-serif;margin:2em auto;max-width:{{ width + 60 }}px}svg{overflow:visible}
.point{fill:#9ab}.mean{fill:none;stroke:#124;stroke-width:2}text{font-size:12px}</style>
<h1>Pre-training, {{ steps }} steps</h1>
{% for line in said %}<p>{{ line }}</p>
{% endfor %}
{% for title, points, line, low, high in curves %}<h2>{{ title }}</h2>
<svg width="{{ width }}" height="{{ height }}" role="img" aria-label="{{ title }} by step">
{% for x, y in points %}<circle class="point" cx="{{ x }}" cy="{{ y }}" r="1.5"/>{% endfor %}
<polyline class="mean" points="{{ line }}"/>
<text x="{{ width + 4 }}" y="12">{{ high }}</text><text x="{{ width + 4 }}" y="{{ height }}">{{ low }}</text></svg>
{% endfor %}</html>
""")


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


def page(rows: Sequence[Scores], said: Sequence[str]) -> str:
    """Return the page of a curve, with the given lines as its summary."""
    found = {
        "Masked-LM loss": [row.masked_lm_loss for row in rows],
        "Next-sentence loss": [row.next_sentence_loss for row in rows],
        "Masked-LM accuracy": [row.masked_lm_accuracy for row in rows],
        "Next-sentence accuracy": [row.next_sentence_accuracy for row in rows],
    }
    curves = [_curve(title, np.array(values)) for title, values in found.items()]
    return _TEMPLATE.render(curves=curves, steps=len(rows), said=said, width=_WIDTH, height=_HEIGHT)


def summary(rows: Sequence[Scores], held_out: Scores | None) -> list[str]:
    """Return lines for the first steps, the last steps and the held-out pairs, and one that explains p."""
    some = min(LAST, len(rows))
    return [
        f"first {some} steps, training pairs: {together(rows[:some])}",
        f"last {some} steps, training pairs: {together(rows[-some:])}",
        *([] if held_out is None else [f"held-out pairs: {held_out}"]),
        "p: probability that guesses do as well (exact binomial test); training pairs may have been seen before",
    ]


def _curve(title: str, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[str, list[tuple[str, str]], str, str, str]:
    low, high = float(values.min()), float(values.max())
    across = np.linspace(0.0, _WIDTH, len(values))
    totals = np.concatenate(([0.0], values.cumsum()))
    begins = np.maximum(np.arange(1, len(values) + 1) - LAST, 0)
    means = (totals[1:] - totals[begins]) / (np.arange(1, len(values) + 1) - begins)

    def points(of: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[tuple[str, str]]:
        up = _HEIGHT * (1.0 - (of - low) / max(high - low, 1e-12))
        return [(f"{x:.1f}", f"{y:.1f}") for x, y in zip(across, up, strict=True)]

    return title, points(values), " ".join(f"{x},{y}" for x, y in points(means)), f"{low:.3g}", f"{high:.3g}"
