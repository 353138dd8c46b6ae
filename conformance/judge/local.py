"""The local judgement: one activation against what the oracle makes of the candidate's own parents, under each hypothesis.

Faults of the activation's own layer are looked for always. Where a candidate hides whole layers, those further back are looked for
once RMS or largest error fails: they name the mistake then, and add nothing to the tests that can raise a false alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.directions import Direction, directions, suspects
from conformance.judge.evidence import Error, Local
from conformance.judge.explain import Question, explanations, single_explanations
from conformance.judge.filters import matched
from conformance.judge.noise import Noise, of_exact, of_segment
from conformance.judge.segment import Segment
from conformance.judge.selection import Mask, explained_elements, independent_rows
from conformance.judge.spread import spread
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
    near = list(directions(network, segment, hypotheses[0].arithmetic.storage))
    found: list[tuple[Local, Question]] = []
    passed: set[str] = set()
    for hypothesis in hypotheses:
        if hypothesis.arithmetic.name in passed:
            continue
        local, question = _under(hypothesis, network, segment, made, judged, near, share(2 + len(near), alpha))
        if local.passes:
            passed.add(local.arithmetic)
        found.append((local, question))
    if passed:
        # Within a wider arithmetic's noise there is no number got wrong that no filter has called.
        fixed = [d for d in near if d.parameter is None]
        return tuple(
            replace(one, explanations=() if one.arithmetic in passed else single_explanations(q, [*q.called, *fixed]))
            for one, q in found
        )
    storage = hypotheses[0].arithmetic.storage
    late = list(directions(network, segment, storage, late=True))
    return tuple(
        replace(one, explanations=explanations(q, [*near, *late, *suspects(network, segment, storage, made, q.noise)]))
        for one, q in found
    )


def _under(
    hypothesis: Hypothesis,
    network: Network,
    segment: Segment,
    made: Array,
    judged: Mask,
    near: Sequence[Direction],
    alpha: float,
) -> tuple[Local, Question]:
    """The judgement under one hypothesis, and the question that is asked where it fails."""
    rows = _independent(hypothesis, network, segment, judged)
    limits = Limits(rms_threshold(rows, alpha), max_threshold(int(judged.sum()), alpha), projection_threshold(alpha))

    noise = of_segment(segment, hypothesis, judged)
    explained = explained_elements(network.table[segment.name], network.batch, made.shape)

    def noise_of(faulty: Segment) -> Noise:
        return of_segment(faulty, hypothesis, explained)

    filters = [(d, f) for d in near if (f := matched(d, made, noise, limits.filter, limits.max))]
    residual = made - segment.value
    error, detected = _local_error(residual, noise), any(f.detected for _, f in filters)
    row, heads = network.table[segment.name], network.architecture.num_attention_heads
    local = Local(
        str(hypothesis),
        hypothesis.arithmetic.name,
        error,
        _surprise(residual, noise) * rows,
        limits.rms,
        limits.max,
        limits.filter,
        tuple(f for _, f in filters),
        spread=spread(row, _scaled(residual, noise), judged, "sigma", heads, fails=detected or not limits.allow(error)),
    )
    return local, Question(
        segment,
        made,
        noise,
        limits.filter,
        noise_of,
        lambda faulty: limits.allow(_local_error(made - faulty.value, noise_of(faulty))),
        lambda faulty: _surprise(made - faulty.value, noise_of(faulty)) * rows,
        [d for d, f in filters if f.detected],
    )


@dataclass(frozen=True)
class Limits:
    """The largest that RMS, largest error and |z| of a filter may be."""

    rms: float
    max: float
    filter: float

    def allow(self, error: Error) -> bool:
        """Whether an error is within them."""
        return error.rms is not None and error.max is not None and error.rms <= self.rms and error.max <= self.max


def _independent(hypothesis: Hypothesis, network: Network, segment: Segment, judged: Mask) -> int:
    """How many rows are draws of their own."""
    coupled = segment.couples_positions and (not segment.is_single_step or hypothesis.parents == "unrounded")
    rows = independent_rows(network.table[segment.name], network.batch, network.architecture.num_attention_heads, coupled=coupled)
    return max(int(rows * segment.repeats(hypothesis.arithmetic.storage).share(judged)), 1)


def exactly(network: Network, segment: Segment, made: Array, judged: Mask, storage: Format, alpha: float) -> Local:
    """The judgement of an exact activation: any difference fails; faults are named where they leave no difference at all."""
    error = measured(None, np.where(judged, made - segment.value, 0.0))
    noise, threshold = of_exact(segment.value, storage, judged), projection_threshold(alpha)
    near = list(directions(network, segment, storage))
    filters = (matched(d, made, noise, threshold, threshold) for d in near)
    local = Local("exact", "exact", error, 0.0, 0.0, 0.0, threshold, tuple(f for f in filters if f))
    if local.passes:
        return local
    row, heads = network.table[segment.name], network.architecture.num_attention_heads
    ulps = (made - segment.value) / storage.ulp(segment.value)
    local = replace(local, spread=spread(row, ulps, judged, "ulp", heads, fails=True))
    question = Question(
        segment,
        made,
        noise,
        threshold,
        lambda _: noise,
        lambda faulty: not np.where(judged, storage.round(faulty.value) - made, 0.0).any(),
        lambda _: 0.0,
    )
    return replace(local, explanations=explanations(question, [*near, *directions(network, segment, storage, late=True)]))


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


def _scaled(residual: Array, noise: Noise) -> Array:
    """In sigma with its sign, once the deterministic bound is taken off."""
    return np.asarray(np.copysign(np.maximum(np.abs(residual) - noise.bound, 0.0) / noise.sigma, residual))


def _local_error(residual: Array, noise: Noise) -> Error:
    """In sigma, once the deterministic bound is taken off each residual."""
    beyond = np.maximum(np.abs(residual) - noise.bound, 0.0) / noise.sigma
    return measured(np.asarray(beyond[noise.judged]), np.where(noise.judged, residual, 0.0))
