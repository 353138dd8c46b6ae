"""Residuals beside the noise that is predicted: bars of what was counted, a line for a normal distribution of one sigma."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from conformance.judge.error_distribution import REACH, STEP
from conformance.report.html.svg import drawing, element

WIDTH, HEIGHT, FOOT = 330.0, 130.0, 18.0


def histogram(counts: Sequence[int]) -> Markup:
    """Of the counts of `judge.error_distribution`; what is beyond its reach stands at its ends."""
    total = sum(counts)
    predicted = [total * _normal(i, len(counts)) for i in range(len(counts))]
    top = max(*counts, *predicted)
    width, room = WIDTH / len(counts), HEIGHT - FOOT
    bars = {False: "", True: ""}
    for i, n in enumerate(counts):
        if n:
            bars[i in (0, len(counts) - 1)] += (
                f"M{i * width + 0.5:.1f} {room:.1f}v{-max(room * n / top, 1.0):.1f}h{width - 1.0:.1f}V{room:.1f}z"
            )
    line = "M" + "L".join(f"{(i + 0.5) * width:.1f} {room - room * p / top:.1f}" for i, p in enumerate(predicted))
    beyond = counts[0] + counts[-1]
    title = f"{total} residuals, {beyond} of them beyond {REACH:g} sigma, beside a normal distribution of one sigma"
    return drawing(
        WIDTH,
        HEIGHT,
        title,
        element("path", d=bars[False], class_="bar"),
        element("path", d=bars[True], class_="bar beyond"),
        element("path", d=line, class_="predicted"),
        *(_label(sigma, f"{sigma:g}{' σ' if sigma == 0.0 else ''}") for sigma in (-REACH / 2.0, 0.0, REACH / 2.0)),
        _label(-REACH - STEP / 2.0, f"< −{REACH:g}", "start"),
        _label(REACH + STEP / 2.0, f"> {REACH:g}", "end"),
    )


def pooled(all_counts: Sequence[Sequence[int]]) -> list[int]:
    """Several histograms as one."""
    return [sum(column) for column in zip(*(c for c in all_counts if c), strict=True)]


def _label(sigma: float, text: str, anchor: str = "middle") -> Markup:
    at = WIDTH / 2.0 + sigma / STEP * WIDTH / (2.0 * REACH / STEP + 2.0)
    at = {"start": 0.0, "end": WIDTH}.get(anchor, at)
    return element("text", text, x=at, y=HEIGHT - 4.0, text_anchor=anchor)


def _normal(index: int, bins: int) -> float:
    """The probability of a bin under a normal distribution of one sigma; the first and the last have the tails."""
    low = -math.inf if index == 0 else -REACH + (index - 1) * STEP
    high = math.inf if index == bins - 1 else -REACH + index * STEP
    return 0.5 * (math.erf(high / math.sqrt(2.0)) - math.erf(low / math.sqrt(2.0)))
