"""The local judgement's two first statistics alone, for searching: is there an activation that no legal arithmetic explains?

The same sigma, the same limits and the same hypotheses as in a judgement; what it leaves out are the matched filters, the global
error and the names, which cost ten times as much. What it finds is judged in full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, independent_rows, judged_elements
from conformance.judge.statistics import max_threshold, rms_threshold, share
from conformance.numerics.accuracy import Accuracy
from conformance.numerics.arithmetic import Hypothesis, hypotheses
from conformance.numerics.formats import Array
from conformance.oracle import Network


@dataclass(frozen=True)
class Screened:
    """One activation: its error over its limit, under the hypothesis where that is least; infinite where nothing may differ."""

    activation: str
    excess: float
    index: tuple[int, ...]
    made: float
    expected: float


def screened(
    network: Network,
    values: Mapping[str, Array],
    dtype: str,
    device: str = "cpu",
    tests: int = 1,
    functions: Accuracy | None = None,
) -> list[Screened]:
    """Every activation that is exposed, in the order of computation; `tests` such calls share the false-alarm probability.

    `functions` as for a judge.
    """
    alpha = share(2 * tests * max(len(values), 1))
    legal = hypotheses(dtype, device, functions)
    order = {name: i for i, name in enumerate(network.table)}
    seen: dict[str, Array] = {}
    found = []
    for name in sorted(values, key=order.__getitem__):
        judged = judged_elements(network.table[name], network.batch, values[name].shape)
        if judged.any():
            found.append(_screened(network, Segment(network, name, seen), values[name], judged, legal, alpha))
        seen[name] = values[name]
    return found


def _screened(network: Network, segment: Segment, made: Array, judged: Mask, legal: Sequence[Hypothesis], alpha: float) -> Screened:
    residual = np.where(judged, made - segment.value, 0.0)
    index = np.unravel_index(int(np.abs(residual).argmax()), residual.shape) if residual.ndim else ()
    excess = 0.0
    if residual.any():
        exact = all(step.site.activation.exact for step in segment.steps.values())
        excess = float("inf") if exact else _least_excess(network, segment, residual, judged, legal, alpha)
    place = tuple(int(i) for i in index)
    return Screened(segment.name, excess, place, float(made[place]), float(segment.value[place]))


def _least_excess(
    network: Network, segment: Segment, residual: Array, judged: Mask, legal: Sequence[Hypothesis], alpha: float
) -> float:
    """Under the first hypothesis that allows the residual, or else the least of all."""
    least = float("inf")
    for hypothesis in legal:
        noise = of_segment(segment, hypothesis, judged)
        scaled = (np.maximum(np.abs(residual) - noise.bound, 0.0) / noise.sigma)[judged]
        coupled = segment.couples_positions and (not segment.is_single_step or hypothesis.parents == "unrounded")
        row = network.table[segment.name]
        rows = max(independent_rows(row, network.batch, network.architecture.num_attention_heads, coupled=coupled), 1)
        distinct = max(int(rows * segment.repeats(hypothesis.arithmetic.storage).share(judged)), 1)
        rms = float(np.sqrt((scaled**2).mean())) / rms_threshold(distinct, alpha)
        least = min(least, max(rms, float(scaled.max()) / max_threshold(scaled.size, alpha)))
        if least <= 1.0:
            return least
    return least
