"""The local judgement: one activation against what the oracle makes of the candidate's own parents, under each hypothesis."""

from collections.abc import Sequence

import numpy as np

from conformance.faults import Fault
from conformance.judge.evidence import Error, Local
from conformance.judge.filters import directions, matched
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, independent_rows
from conformance.judge.statistics import max_threshold, projection_threshold, rms_threshold
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle import Network


def locally(
    network: Network, segment: Segment, residual: Array, judged: Mask, hypotheses: Sequence[Hypothesis], alpha: float
) -> tuple[Local, ...]:
    """The judgement under each hypothesis that is needed, in their order, each statistic at false-alarm probability alpha.

    Parents are taken as unrounded only under an arithmetic that fails with parents as captured: sigma is wider then, so what
    passes as captured would pass as well.
    """
    faults = list(directions(network, segment))
    found: list[Local] = []
    passed: set[str] = set()
    for hypothesis in hypotheses:
        if hypothesis.arithmetic.rounding in passed:
            continue
        local = _under(hypothesis, network, segment, residual, judged, faults, alpha)
        if local.passes:
            passed.add(local.arithmetic)
        found.append(local)
    return tuple(found)


def _under(
    hypothesis: Hypothesis,
    network: Network,
    segment: Segment,
    residual: Array,
    judged: Mask,
    faults: Sequence[tuple[Fault, str, Array]],
    alpha: float,
) -> Local:
    sigma = np.sqrt(segment.propagate(segment.leaf_variance(hypothesis), hypothesis))
    coupled = segment.couples_positions and (not segment.is_single_step or hypothesis.parents == "unrounded")
    row, heads = network.table[segment.name], network.architecture.num_attention_heads
    rows = independent_rows(row, network.batch, heads, coupled=coupled)
    filters = (matched(f, n, d, residual, segment, hypothesis, sigma, judged) for f, n, d in faults)
    return Local(
        str(hypothesis),
        hypothesis.arithmetic.rounding,
        _local_error(residual, sigma, segment.bound(hypothesis), judged),
        rows,
        rms_threshold(rows, alpha),
        max_threshold(int(judged.sum()), alpha),
        projection_threshold(alpha),
        tuple(f for f in filters if f),
    )


def measured(scaled: Array | None, difference: Array) -> Error:
    """An error from its values in sigma (None where there is no sigma) and its differences."""
    magnitude = np.abs(difference)
    index = np.unravel_index(int(magnitude.argmax()), magnitude.shape) if magnitude.size else ()
    largest = float(magnitude.max(initial=0.0))
    place = tuple(int(i) for i in index)
    if scaled is None:
        return Error(None, None, largest, place)
    return Error(float(np.sqrt((scaled**2).mean())), float(np.abs(scaled).max(initial=0.0)), largest, place)


def _local_error(residual: Array, sigma: Array, bound: Array | float, judged: Mask) -> Error:
    """In sigma, once the deterministic bound is taken off each residual."""
    beyond = np.maximum(np.abs(residual) - bound, 0.0) / sigma
    return measured(np.asarray(beyond[judged]), np.where(judged, residual, 0.0))
