"""The HTML page of a run's curves: losses and accuracies, with a point for each step and a line for the mean over fifty steps."""

from collections.abc import Sequence

import numpy as np
from jinja2 import Environment

from .curve import LAST
from .scores import Scores, together

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
