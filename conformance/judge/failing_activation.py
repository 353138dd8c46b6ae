"""Judgement of failing activations: every hypothesis and every filter is evaluated, and explanations are searched for.

Faults of the activation's own layer are always looked for. If a candidate does not expose whole layers, faults in earlier layers
are looked for here only, also in several layers at once: they name the mistake, and they add no tests that could raise a false
alarm.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from conformance.judge.block_totals import Effect, GrossEffects, filter_result
from conformance.judge.by_hand import mistaken_by_hand, passing_by_hand
from conformance.judge.depth import Depth
from conformance.judge.error_distribution import distribution_of
from conformance.judge.evidence import BY_OPERATIONS, Explanation, FilterResult, Local
from conformance.judge.explanation_search import (
    StepProblem,
    explanations,
    explanations_by_one_number,
    fitted_explanations,
    is_of_catalogue,
    single_explanations,
)
from conformance.judge.fault_directions import Direction, candidate_directions, direction, directions, in_other_layers
from conformance.judge.filters import GROSS, gross_result, is_gross, matched, project
from conformance.judge.judged_elements import Mask, zeroed
from conformance.judge.noise import Noise, of_exact, of_segment
from conformance.judge.observation import Observation
from conformance.judge.row_projections import row_nlls
from conformance.judge.screen import STATISTICS
from conformance.judge.search.first_order_screen import ranked
from conformance.judge.segment import Segment
from conformance.judge.sums import ErrorSums, LocalSums, in_sigma
from conformance.judge.thresholds import Limits, projection_threshold
from conformance.numerics.arithmetic import Hypothesis, still_needed
from conformance.numerics.formats import Array, Format

FAR = 12  # number of faults of other layers that are tried; each costs a pass over the segment


class Search(Protocol):
    """A search for explanations: one of those of `judge.explanation_search`."""

    def __call__(
        self, problem: StepProblem, candidates: Sequence[Direction], known: Collection[str], *, loose: bool = True
    ) -> tuple[Explanation, ...]:
        """Return the explanations, the best first."""


class UnexposedLayers(Protocol):
    """A search for mistakes in several unexposed layers at once; implemented in `diagnosis.unexposed_layers`."""

    def explanations(
        self, observation: Observation, known: Collection[str], detected: Sequence[Direction]
    ) -> tuple[Explanation, ...]:
        """Return the sets of faults that explain an activation, the best first; empty if there are none.

        Args:
            observation: the activation.
            known: names of the faults that explained other activations.
            detected: the faults whose filters found that the residual is not noise.
        """

    def with_layer_filters(self, observation: Observation, locals_: Sequence[Local]) -> tuple[Local, ...]:
        """Return the judgements; those that pass get a filter for each fault that has none.

        The filter is derived from the largest error that the fault would cause.
        """


def judge_whole(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    gross: GrossEffects,
    unexposed_layers: UnexposedLayers | None = None,
    known: Collection[str] = (),
    known_effects: Mapping[Hypothesis, Mapping[int, Effect]] = {},
) -> tuple[Local, ...]:
    """Judge a whole activation under each hypothesis that is needed, with explanations if it fails.

    Args:
        observation: the activation.
        hypotheses: the hypotheses, the one with the tightest arithmetic first.
        alpha: total false-alarm probability of the activation.
        gross: the faults that are looked for, and the effects of gross ones.
        unexposed_layers: the search for mistakes in several unexposed layers.
        known: names of the faults that explained another activation; they are tried before all others.
        known_effects: effects on the whole activation that are already computed, by hypothesis and by the fault's index.
    """
    segment, storage = observation.whole.segment, hypotheses[0].arithmetic.storage
    near, draws = [look.on(segment) for look in gross.directions], observation.draws(hypotheses)
    found: list[tuple[Local, StepProblem]] = []
    passed: set[str] = set()
    for hypothesis in still_needed(hypotheses, passed):
        effects = known_effects.get(hypothesis)
        local, problem = _judgement_under(hypothesis, observation, gross, near, draws, alpha, observation.whole.actual, effects)
        if local.passes:
            passed.add(local.arithmetic)
        found.append((local, problem))
    handmade = passing_by_hand(
        observation,
        hypotheses[0],
        passed,
        lambda actual: _judgement_under(hypotheses[0], observation, gross, near, draws, alpha, actual)[0],
    )
    if handmade:
        return (handmade,)
    tightest, fixed = found[0][0], [d for d in near if d.parameter is None]
    mistake = _mistake_by_hand(observation, hypotheses[0], fixed, draws, tightest, passed)
    mistaken = (replace(tightest, hypothesis=BY_OPERATIONS, arithmetic=BY_OPERATIONS, explanations=(mistake,)),) if mistake else ()
    if passed:
        found = _with_rows(found, near, draws)
        late = candidate_directions(segment, storage, after_failure=True) if any(q.detected for _, q in found) else []
        named = (replace(one, explanations=() if one.arithmetic in passed else _single(q, late, known)) for one, q in found)
        return (*named, *mistaken)
    if mistaken:
        return mistaken
    if not observation.has_unexposed_layers:
        return _with_explanations(found, near, storage, explanations, known)
    detected = [look for _, problem in found for look in problem.detected]
    if unexposed_layers is not None and (by_layers := unexposed_layers.explanations(observation, known, detected)):
        return tuple(replace(local, explanations=by_layers) for local, _ in found)
    by_one = _with_explanations(found, near, storage, single_explanations, known)
    return by_one if any(local.named for local in by_one) else _with_explanations(found, (), storage, fitted_explanations)


def _single(problem: StepProblem, late: Sequence[Direction], known: Collection[str]) -> tuple[Explanation, ...]:
    """Return the explanations by one mistake of an activation that passes under another arithmetic.

    An incorrect parameter that no filter has detected is not looked for within a wider arithmetic's noise.
    """
    found = single_explanations(problem, [*problem.detected, *problem.subtle, *late], known)
    return found or (explanations_by_one_number(problem) if problem.detected else ())


def _with_rows(
    found: Sequence[tuple[Local, StepProblem]], near: Sequence[Direction], draws: int
) -> list[tuple[Local, StepProblem]]:
    """Return the judgements with the evidence of rows, if steps are not exposed and only filters fail under a hypothesis.

    The mistake is the one whose filter has the largest |z| under the tightest such hypothesis.
    """
    failing = next((local for local, _ in found if local.has_unexposed_steps and local.fails_by_filters_alone), None)
    if failing is None:
        return list(found)
    called = max(failing.detected, key=lambda f: abs(f.z))
    effect = next(d.known_effect for d in near if (d.fault.name, d.step) == (called.name, called.step))
    residual = found[0][1].actual - found[0][1].right.value
    compared = [(local, problem.noise) for local, problem in found if local.passes or local.fails_by_filters_alone]
    fails = [not local.passes for local, _ in compared]
    found_nlls = row_nlls(residual, effect, [noise for _, noise in compared], fails, draws)
    nlls = dict(zip((local.hypothesis for local, _ in compared), found_nlls, strict=True))
    return [(replace(local, row_nll=nlls.get(local.hypothesis, 0.0)), problem) for local, problem in found]


def _with_explanations(
    found: Sequence[tuple[Local, StepProblem]],
    near: Sequence[Direction],
    storage: Format,
    search: Search,
    known: Collection[str] = (),
) -> tuple[Local, ...]:
    """Return the judgements with explanations; without any if none is found under the last hypothesis, whose sigma is the widest.

    What passes under a narrower sigma passes under a wider one as well. If only a fit explains the result under the widest sigma,
    only fits are tried under the others; faults that explain it under the widest sigma are tried first under the others.
    """
    faults = [*near, *_late_directions(found[0][1], storage)] if near else []
    named: list[Local] = []
    for local, problem in reversed(found):
        is_known = any(is_of_catalogue(explanation) for one in named for explanation in one.explanations)
        if named and not is_known:
            explained_by = fitted_explanations(problem)
        else:
            explained_by = search(problem, faults, known, loose=not is_known)
            known = {*known, *(fault.name for explanation in explained_by for fault in explanation.faults)}
        if not explained_by and not named:
            return tuple(local for local, _ in found)
        named.append(replace(local, explanations=explained_by))
    return tuple(reversed(named))


def _late_directions(problem: StepProblem, storage: Format) -> Iterator[Direction]:
    """Yield the faults that are looked for late, and the most promising faults at steps of other layers."""
    yield from candidate_directions(problem.right, storage, after_failure=True)
    if far := in_other_layers(problem.right):
        on = problem.part(())
        for placement in ranked(on, on.none, far)[:FAR]:
            yield direction(placement.fault, placement.places[0], problem.right, storage)


def _mistake_by_hand(
    observation: Observation, hypothesis: Hypothesis, mistakes: Sequence[Direction], draws: int, local: Local, passed: set[str]
) -> Explanation | None:
    """Return the likeliest mistake in a step written by hand, if the step with it passes under the tightest arithmetic.

    The likelihood is that under the nearest of several orders of operations; the logarithm of their number is its cost.
    """
    block, found = observation.whole, []
    tried = list(mistaken_by_hand(observation, hypothesis, mistakes, passed))
    for mistake, actual in tried:
        assert mistake.usual is not None
        sums = LocalSums.of(actual - mistake.usual.value, of_segment(mistake.usual, hypothesis, block.explained), block.counted)
        rms, largest = sums.errors.error.rms, sums.errors.error.max
        if rms is not None and largest is not None and rms <= local.rms_threshold and largest <= local.max_threshold:
            found.append((sums.mean_nll * draws + math.log(len(tried)), mistake))
    if not found:
        return None
    nll, mistake = min(found, key=lambda pair: pair[0])
    projection = project(block.residual, mistake.known_effect, block.noise(hypothesis))
    assert projection is not None  # The mistake moves a judged element; otherwise the step would pass without it.
    result = FilterResult(mistake.fault.name, mistake.step, projection.amplitude, projection.z, projection.expected_z)
    return Explanation((result.as_detected(True),), 0, nll)


def _judgement_under(
    hypothesis: Hypothesis,
    observation: Observation,
    gross_effects: GrossEffects,
    near: Sequence[Direction],
    draws: int,
    alpha: float,
    actual: Array,
    effects: Mapping[int, Effect] | None = None,
) -> tuple[Local, StepProblem]:
    """Return the judgement of the array under one hypothesis, and the data of the search for explanations if it fails.

    The likelihood is that of `draws` independent draws of the noise. The faults' `effects` are computed if they are not given.
    """
    block = observation.whole
    rows = observation.independent(hypothesis, block.segment.hashes(hypothesis.arithmetic.storage))
    gross = gross_effects.under(hypothesis)
    tests = sum(i in gross or near[i].effect is not None for i in range(len(near))) if effects is None else len(effects)
    limits = Limits.of(rows, observation.count, STATISTICS + tests, alpha)
    noise, residual = block.noise(hypothesis), actual - block.segment.value

    def sums_of(faulty: Segment, elements: Mask) -> LocalSums:
        return LocalSums.of(actual - faulty.value, of_segment(faulty, hypothesis, elements), block.counted)

    def result(number: int) -> FilterResult | None:
        look = near[number]
        if number in gross:
            return gross_result(look, gross[number].size)
        if effects is not None:
            return filter_result(look, effects[number], limits) if number in effects else None
        return None if look.effect is None else matched(look, actual, noise, limits.filter, limits.max)

    filters = [(near[i], f) for i in range(len(near)) if (f := result(i))]
    sums, detected = LocalSums.of(residual, noise, block.counted), any(f.detected for _, f in filters)
    fails = detected or not sums.errors.within(limits)
    most = sums.errors.largest + GROSS * limits.max  # a fault that moves an element by more leaves a gross error
    local = Local(
        str(hypothesis),
        hypothesis.arithmetic.name,
        sums.errors.error,
        sums.mean_nll * draws,
        limits.rms,
        limits.max,
        limits.filter,
        tuple(f for _, f in filters),
        distribution=distribution_of(
            block.activation, in_sigma(residual, noise), block.judged, "sigma", observation.heads, fails=fails
        ),
        has_unexposed_steps=not block.segment.is_single_step,
    )
    return local, StepProblem(
        block.segment,
        hypothesis.arithmetic.storage,
        actual,
        noise,
        limits.filter,
        lambda faulty: of_segment(faulty, hypothesis, block.explained),
        lambda faulty: sums_of(faulty, block.explained).errors.within(limits),
        lambda faulty: sums_of(faulty, block.judged).mean_nll * draws,  # over the same elements as the likelihood without a fault
        [d for d, f in filters if f.detected],
        [d for i, d in enumerate(near) if d.parameter is None and (i not in gross or gross[i].size <= most)],
        part=lambda faulty: _problem_on_worst_rows(
            observation, hypothesis, limits, noise.precision * np.square(actual - faulty.value)
        ),
    )


def _problem_on_worst_rows(observation: Observation, hypothesis: Hypothesis, limits: Limits, left: Array) -> StepProblem | None:
    """Return the data of the search on the rows with the largest residual; None if the residual there is not gross.

    The largest error and Σ e² of the whole batch are at least those of a part. Parameters fitted to the whole batch change errors
    by only a few sigma, so gross errors remain beyond their limit.
    """
    block = observation.worst_rows(left)
    if block is None:
        return None
    largest = float(np.sqrt(left[block.first : block.first + block.network.batch.size].max()))
    if not is_gross(largest, limits.max):
        return None

    def noise_of(faulty: Segment) -> Noise:
        return of_segment(faulty, hypothesis, block.explained)

    def passes(faulty: Segment) -> bool:
        errors = LocalSums.of(block.actual - faulty.value, noise_of(faulty), block.counted).errors
        return not is_gross(errors.largest, limits.max) and errors.squares <= observation.count * (GROSS * limits.rms) ** 2

    noise = of_segment(block.segment, hypothesis, block.judged)
    storage = hypothesis.arithmetic.storage
    return StepProblem(block.segment, storage, block.actual, noise, limits.filter, noise_of, passes, lambda _: 0.0)


def judge_exact_steps(observation: Observation, hypothesis: Hypothesis, alpha: float, depth: Depth) -> Local:
    """Judge an exact activation: any difference fails.

    A fault is named if it leaves no difference at all; a fault that computes values that should be looked up, if it leaves only a
    difference that its rounding explains.
    """
    block, threshold, storage = observation.whole, projection_threshold(alpha), hypothesis.arithmetic.storage
    actual, judged = block.actual, block.judged
    error = ErrorSums.of(np.zeros(0), 0, zeroed(block.residual, judged)).exact
    local = Local("exact", "exact", error, 0.0, 0.0, 0.0, threshold)
    if depth == "screen":
        return local
    noise = of_exact(block.segment.value, storage, judged)
    near = list(directions(block.segment, storage))
    filters = (matched(d, actual, noise, threshold, threshold) for d in near)
    local = replace(local, filters=tuple(f for f in filters if f))
    if local.passes:
        return local
    with np.errstate(over="ignore"):
        ulps = block.residual / storage.ulp(block.segment.value)
    local = replace(local, distribution=distribution_of(block.activation, ulps, judged, "ulp", observation.heads, fails=True))

    def accounts(faulty: Segment) -> bool:
        rounding = faulty.steps[faulty.name].roundings(hypothesis.arithmetic)
        allowed = threshold * np.sqrt(rounding.variance()) + rounding.bound
        return bool((np.abs(storage.round(faulty.value) - actual) <= allowed)[judged].all())

    problem = StepProblem(block.segment, storage, actual, noise, threshold, lambda _: noise, accounts, lambda _: 0.0)
    return replace(
        local, explanations=explanations(problem, [*near, *candidate_directions(block.segment, storage, after_failure=True)])
    )
