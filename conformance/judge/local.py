"""The local judgement: one activation against what the oracle makes of the candidate's own parents, under each hypothesis.

Faults of the activation's own layer are looked for always. Where a candidate hides whole layers, those further back are looked for
once RMS or largest error fails: they name the mistake then, and add nothing to the tests that can raise a false alarm.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from conformance.judge.evidence import Error, Filtered, Local
from conformance.judge.filters import Direction, Judging, directions, matched, suspects
from conformance.judge.noise import Noise, of_exact, of_segment
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, independent_rows
from conformance.judge.statistics import max_threshold, projection_threshold, rms_threshold, share
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Format
from conformance.oracle import Network


def locally(
    network: Network, segment: Segment, made: Array, judged: Mask, hypotheses: Sequence[Hypothesis], alpha: float
) -> tuple[Local, ...]:
    """The judgement under each hypothesis that is needed, in their order, at false-alarm probability alpha in all.

    Parents are taken as unrounded only under an arithmetic that fails with parents as captured: sigma is wider then, so what
    passes as captured would pass as well.
    """
    near = list(directions(network, segment))
    found: list[Local] = []
    passed: set[str] = set()
    for hypothesis in hypotheses:
        if hypothesis.arithmetic.rounding in passed:
            continue
        local = _under(hypothesis, network, segment, made, judged, near, share(2 + len(near), alpha))
        if local.passes:
            passed.add(local.arithmetic)
        found.append(local)
    return tuple(found)


def _under(
    hypothesis: Hypothesis,
    network: Network,
    segment: Segment,
    made: Array,
    judged: Mask,
    near: Sequence[Direction],
    alpha: float,
) -> Local:
    noise = of_segment(segment, hypothesis, judged)
    coupled = segment.couples_positions and (not segment.is_single_step or hypothesis.parents == "unrounded")
    rows = independent_rows(network.table[segment.name], network.batch, network.architecture.num_attention_heads, coupled=coupled)
    rows = max(int(rows * segment.repeats(hypothesis.arithmetic.storage).share(judged)), 1)
    local = Local(
        str(hypothesis),
        hypothesis.arithmetic.rounding,
        _local_error(made - segment.value, noise),
        _surprise(made - segment.value, noise) * rows,
        rms_threshold(rows, alpha),
        max_threshold(int(judged.sum()), alpha),
        projection_threshold(alpha),
    )
    local = replace(local, filters=_filtered(near, segment, made, hypothesis, noise, local))
    if local.passes or local.named:
        return local
    further = _filtered(suspects(network, segment, made, noise), segment, made, hypothesis, noise, local)
    return replace(local, filters=local.filters + tuple(f for f in further if f.detected))


def _filtered(
    faults: Iterable[Direction], segment: Segment, made: Array, hypothesis: Hypothesis, noise: Noise, limits: Local
) -> tuple[Filtered, ...]:
    """Every fault's filter; one explains the residual when RMS and largest error pass with it."""

    def explains(faulty: Segment) -> bool:
        error = _local_error(made - faulty.value, of_segment(faulty, hypothesis, noise.judged))
        assert error.rms is not None
        assert error.max is not None
        return error.rms <= limits.rms_threshold and error.max <= limits.max_threshold

    judging = Judging(limits.filter_threshold, lambda s: of_segment(s, hypothesis, noise.judged), explains)
    filters = (matched(d, made, segment.value, noise, judging) for d in faults)
    return tuple(f for f in filters if f)


def exactly(network: Network, segment: Segment, made: Array, judged: Mask, storage: Format, alpha: float) -> Local:
    """The judgement of an exact activation: any difference fails; faults are named where they leave no difference at all."""
    error = measured(None, np.where(judged, made - segment.value, 0.0))
    noise, threshold = of_exact(segment.value, storage, judged), projection_threshold(alpha)

    def explains(faulty: Segment) -> bool:
        return not np.where(judged, made - faulty.value, 0.0).any()

    judging = Judging(threshold, lambda _: noise, explains)
    filters = (matched(d, made, segment.value, noise, judging) for d in directions(network, segment))
    return Local("exact", "exact", error, 0.0, 0.0, 0.0, threshold, tuple(f for f in filters if f))


def measured(scaled: Array | None, difference: Array) -> Error:
    """An error from its values in sigma (None where there is no sigma) and its differences."""
    magnitude = np.abs(difference)
    index = np.unravel_index(int(magnitude.argmax()), magnitude.shape) if magnitude.size else ()
    largest = float(magnitude.max(initial=0.0))
    place = tuple(int(i) for i in index)
    if scaled is None:
        return Error(None, None, largest, place)
    return Error(float(np.sqrt((scaled**2).mean())), float(np.abs(scaled).max(initial=0.0)), largest, place)


def _surprise(residual: Array, noise: Noise) -> float:
    """Mean over the judged elements of e²/2 + ln σ."""
    beyond = np.maximum(np.abs(residual) - noise.bound, 0.0) / noise.sigma
    return float((beyond**2 / 2.0 + np.log(noise.sigma))[noise.judged].mean())


def _local_error(residual: Array, noise: Noise) -> Error:
    """In sigma, once the deterministic bound is taken off each residual."""
    beyond = np.maximum(np.abs(residual) - noise.bound, 0.0) / noise.sigma
    return measured(np.asarray(beyond[noise.judged]), np.where(noise.judged, residual, 0.0))
