"""Judgement of failing activations: every hypothesis and every filter is evaluated, and explanations are searched for.

Faults of the activation's own layer are always looked for. If a candidate does not expose whole layers, faults in earlier layers
are looked for here only, also in several layers at once: they name the mistake, and they add no tests that could raise a false
alarm.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from conformance.judge.block_totals import BlockTotals
from conformance.judge.by_hand import mistaken_by_hand, passing_by_hand
from conformance.judge.depth import Depth
from conformance.judge.error_distribution import distribution_of
from conformance.judge.evidence import BY_OPERATIONS, Error, Explanation, FilterResult, LocalJudgement
from conformance.judge.explanation_search import (
    explanations,
    fitted_explanations,
    is_of_catalogue,
    single_explanations,
)
from conformance.judge.fault_directions import Direction, direction, effective_directions, in_other_layers, possible_directions
from conformance.judge.fault_effects import GrossEffects
from conformance.judge.filters import matched, project
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import Noise, of_exact, of_segment
from conformance.judge.observation import Observation
from conformance.judge.search.first_order_screen import ranked
from conformance.judge.segment import Segment
from conformance.judge.step_problem import StepProblem
from conformance.judge.sums import ErrorSums, LocalSums
from conformance.judge.whole_activation import Judged, WholeActivation
from conformance.numerics.arithmetic import Hypothesis, still_needed
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import projection_threshold
from conformance.oracle.linear_maps import Roundings

MOST_OF_OTHER_LAYERS = 12  # number of faults of other layers that are tried; each costs a pass over the segment

# A search for explanations: maps a problem, the names of known faults, and whether fits with numbers for each token are tried, to
# the explanations, the best first.
Search = Callable[[StepProblem, Collection[str], bool], tuple[Explanation, ...]]


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

    def with_layer_filters(self, observation: Observation, locals_: Sequence[LocalJudgement]) -> tuple[LocalJudgement, ...]:
        """Return the judgements; those that pass get a filter for each fault that has none.

        The filter is derived from the largest error that the fault would cause.
        """


def judge_whole(
    observation: Observation,
    totals: Mapping[Hypothesis, BlockTotals],
    alpha: float,
    gross: GrossEffects,
    unexposed_layers: UnexposedLayers | None = None,
    known: Collection[str] = (),
) -> tuple[LocalJudgement, ...]:
    """Judge a whole activation under each hypothesis that is needed, with explanations if it fails.

    Args:
        observation: the activation.
        totals: the totals over its blocks under each hypothesis that may be needed, the one with the tightest arithmetic first.
        alpha: total false-alarm probability of the activation.
        gross: the faults that are looked for, and the effects of gross ones.
        unexposed_layers: the search for mistakes in several unexposed layers.
        known: names of the faults that explained another activation; they are tried before all others.
    """
    hypotheses, near = list(totals), gross.on(observation.whole.segment)
    draw_count = observation.independent_draw_count(hypotheses)
    whole = WholeActivation(observation, gross, near, draw_count, alpha)
    found, passed = _judged(whole, totals)
    passing = passing_by_hand(observation, hypotheses[0], passed, lambda actual: whole.judge_derived(hypotheses[0], actual))
    if passing:
        return (passing,)
    tightest, fixed = found[0].local, [d for d in near if d.parameter is None]
    likeliest = _mistakes_by_hand(observation, hypotheses[0], fixed, draw_count, tightest, passed)
    mistaken = (replace(tightest, hypothesis=BY_OPERATIONS, arithmetic=BY_OPERATIONS, explanations=likeliest),) if likeliest else ()
    if passed:
        return (*_named_where_failing(_with_rows(observation, found, near, draw_count), passed, known), *mistaken)
    return mistaken or _explained(observation, found, near, unexposed_layers, known)


def _judged(whole: WholeActivation, totals: Mapping[Hypothesis, BlockTotals]) -> tuple[list[Judged], set[str]]:
    """Return the judgement under each hypothesis that is needed, and the arithmetics that pass."""
    found: list[Judged] = []
    passed: set[str] = set()
    for hypothesis in still_needed(totals, passed):
        judged = whole.judge(hypothesis, totals[hypothesis])
        if judged.local.passes:
            passed.add(judged.local.arithmetic)
        found.append(judged)
    return found, passed


def _explained(
    observation: Observation,
    found: Sequence[Judged],
    near: Sequence[Direction],
    unexposed_layers: UnexposedLayers | None,
    known: Collection[str],
) -> tuple[LocalJudgement, ...]:
    """Return the judgements of an activation that fails under every hypothesis, with explanations.

    If whole layers are not exposed, mistakes in several of them are tried first, then single mistakes, then fits.
    """
    tightest = found[0].problem
    if not observation.has_unexposed_layers:
        faults = _with_late_directions(near, tightest)
        return _with_explanations(
            found, lambda problem, known, per_token: explanations(problem, faults, known, per_token=per_token), known
        )
    detected = [d for judged in found for d in judged.detected]
    if unexposed_layers is not None and (by_layers := unexposed_layers.explanations(observation, known, detected)):
        return tuple(replace(judged.local, explanations=by_layers) for judged in found)
    faults = _with_late_directions(near, tightest)
    by_one = _with_explanations(found, lambda problem, known, _: single_explanations(problem, faults, known), known)
    if any(local.named for local in by_one):
        return by_one
    return _with_explanations(found, lambda problem, _, per_token: fitted_explanations(problem, per_token=per_token), known)


def _single(problem: StepProblem, late: Sequence[Direction], known: Collection[str]) -> tuple[Explanation, ...]:
    """Return the explanations by one mistake of an activation that passes under another arithmetic.

    An incorrect parameter that no filter has detected is not looked for within a wider arithmetic's noise.
    """
    return single_explanations(problem, [*problem.detected, *problem.subtle, *late], known)


def _with_rows(observation: Observation, found: Sequence[Judged], near: Sequence[Direction], draw_count: int) -> list[Judged]:
    """Return the judgements with the evidence of rows, if only filters fail under a hypothesis.

    The mistake is the one whose filter has the largest |z| under the tightest such hypothesis.
    """
    judgements = [judged.local for judged in found]
    failing = next((local for local in judgements if local.fails_by_filters_alone), None)
    if failing is None:
        return list(found)
    called = max(failing.detected, key=lambda f: abs(f.z))
    effect = next(d.known_effect for d in near if (d.fault.name, d.step) == (called.name, called.step))
    compared = [judged for judged in found if judged.local.passes or judged.local.fails_by_filters_alone]
    noises, fails = [judged.problem.noise for judged in compared], [not judged.local.passes for judged in compared]
    found_nlls = row_nlls(observation.whole.residual, effect, noises, fails, draw_count)
    nlls = dict(zip((judged.local.hypothesis for judged in compared), found_nlls, strict=True))
    with_nll = (replace(local, row_nll=nlls.get(local.hypothesis, 0.0)) for local in judgements)
    return [replace(judged, local=local) for judged, local in zip(found, with_nll, strict=True)]


def _named_where_failing(found: Sequence[Judged], passed: Collection[str], known: Collection[str]) -> Iterator[LocalJudgement]:
    """Yield the judgements of an activation that passes under some arithmetic, with single faults under those where it fails."""
    late: Sequence[Direction] = []
    if any(judged.detected for judged in found):
        tightest = found[0].problem
        late = possible_directions(tightest.right, tightest.storage, after_failure=True)
    for judged in found:
        is_passing = judged.local.arithmetic in passed
        yield judged.local if is_passing else replace(judged.local, explanations=_single(judged.problem, late, known))


def _with_explanations(found: Sequence[Judged], search: Search, known: Collection[str] = ()) -> tuple[LocalJudgement, ...]:
    """Return the judgements with explanations; without any if none is found under the last hypothesis, whose sigma is the widest.

    What passes under a narrower sigma passes under a wider one as well. If only a fit explains the result under the widest sigma,
    only fits are tried under the others; faults that explain it under the widest sigma are tried first under the others.
    """
    named: list[LocalJudgement] = []
    likely: set[str] = set()  # explain the result under a wider sigma
    for judged in reversed(found):
        local, problem = judged.local, judged.problem
        by_catalogue = any(is_of_catalogue(explanation) for one in named for explanation in one.explanations)
        if named and not by_catalogue:
            explained_by = fitted_explanations(problem, likely=likely)
        else:
            explained_by = search(problem, {*known, *likely}, not by_catalogue)
        if not explained_by and not named:
            return tuple(judged.local for judged in found)
        likely |= {fault.name for explanation in explained_by for fault in explanation.faults}
        named.append(replace(local, explanations=explained_by))
    return tuple(reversed(named))


def _with_late_directions(near: Sequence[Direction], problem: StepProblem) -> list[Direction]:
    """Return the directions with those of `after_failure` faults, and with the nearest ones at steps of other layers.

    If there are no directions, no others are looked for.
    """
    if not near:
        return []
    late = list(possible_directions(problem.right, problem.storage, after_failure=True))
    if far := in_other_layers(problem.right):
        on = problem.part(())
        nearest = ranked(on, on.none, far)[:MOST_OF_OTHER_LAYERS]
        late += [direction(placement.fault, placement.places[0], problem.right, problem.storage) for placement in nearest]
    return [*near, *late]


def _mistakes_by_hand(
    observation: Observation,
    hypothesis: Hypothesis,
    mistakes: Sequence[Direction],
    draw_count: int,
    local: LocalJudgement,
    passed: set[str],
) -> tuple[Explanation, ...]:
    """Return the likeliest mistake in a step written by hand, if the step with it passes under the tightest arithmetic.

    Mistakes that give the same result, such as two that use the weights of the same other layer, are all returned. The likelihood
    is that under the nearest of several orders of operations; the logarithm of their number is its cost.
    """
    block, found = observation.whole, []
    tried = list(mistaken_by_hand(observation, hypothesis, mistakes, passed))
    for mistake, actual in tried:
        faulty = mistake.faulty
        assert faulty is not None
        sums = LocalSums.of(actual - faulty.value, of_segment(faulty, hypothesis, block.elements_to_explain), block.counted)
        rms, largest = sums.errors.error.rms, sums.errors.error.max
        if rms is not None and largest is not None and rms <= local.rms_threshold and largest <= local.max_threshold:
            found.append((sums.mean_nll * draw_count + math.log(len(tried)), mistake))
    least = min((nll for nll, _ in found), default=0.0)
    explanations = []
    for mistake in (mistake for nll, mistake in found if nll == least):
        projection = project(block.residual, mistake.known_effect, block.noise(hypothesis))
        assert projection is not None  # The mistake moves a judged element; otherwise the step would pass without it.
        result = FilterResult(mistake.fault.name, mistake.step, projection.amplitude, projection.z, projection.expected_z)
        explanations.append(Explanation((result.concluded(detected=True),), 0, least))
    return tuple(explanations)


def judge_exact_steps(observation: Observation, hypothesis: Hypothesis, alpha: float, depth: Depth) -> LocalJudgement:
    """Judge an exact activation: any difference fails.

    A fault is named if it leaves no difference at all; a fault that computes values that should be looked up, if it leaves only a
    difference that its rounding explains.
    """
    threshold, storage = projection_threshold(alpha), hypothesis.arithmetic.storage
    if depth == "screen" and observation.is_unchanged_copy:
        return LocalJudgement("exact", "exact", Error(None, None, 0.0, (0,) * observation.actual.ndim), 0.0, 0.0, 0.0, threshold)
    block = observation.whole
    actual, judged = block.actual, block.judged
    error = ErrorSums.of(np.zeros(0), 0, zeroed(block.residual, judged)).exact
    local = LocalJudgement("exact", "exact", error, 0.0, 0.0, 0.0, threshold)
    if depth == "screen":
        return local
    noise = of_exact(block.segment.value, storage, judged)
    near = list(effective_directions(block.segment, storage))
    filters = (matched(d, actual, noise, threshold, threshold) for d in near)
    local = replace(local, filters=tuple(f for f in filters if f))
    if local.passes:
        return local
    if observation.on_device:
        return judge_exact_steps(observation.in_memory, hypothesis, alpha, depth)
    with np.errstate(over="ignore"):
        ulps = block.residual / storage.ulp(block.segment.value)
    local = replace(local, distribution=distribution_of(block.activation, ulps, judged, "ulp", block.head_size, fails=True))

    def roundings_of(faulty: Segment) -> Roundings:
        return faulty.steps[faulty.name].roundings(hypothesis.arithmetic)

    def noise_of(faulty: Segment) -> Noise:
        return of_exact(block.segment.value, storage, judged, roundings_of(faulty))

    def accounts(faulty: Segment) -> bool:
        rounding = roundings_of(faulty)
        allowed = threshold * np.sqrt(rounding.variance()) + rounding.bound
        return bool((np.abs(storage.round(faulty.value) - actual) <= allowed)[judged].all())

    problem = StepProblem(block.segment, storage, actual, noise, threshold, noise_of, accounts, lambda _: 0.0)
    return replace(
        local, explanations=explanations(problem, [*near, *possible_directions(block.segment, storage, after_failure=True)])
    )


ROWS = 16  # The most rows that are looked at, which limits the cost: one propagation through the segment each.


def row_nlls(residual: Array, effect: Array, noises: Sequence[Noise], fails: Sequence[bool], draw_count: int) -> list[float]:
    """Return −ln of the likelihood of the rows' projections under each hypothesis, in nats, up to a common constant.

    This is the evidence from the rows of a residual, where steps are not exposed and only a mistake's filter fails. An error that
    the elements of a row share, such as that of a LayerNorm's inverse root rounded to a half format, hardly changes the RMS, but
    the filter of a mistake with the same effect sums it over the row. The elementwise likelihood (`LocalJudgement.nll`) cannot
    distinguish such an arithmetic from a mistake under a tighter one; the signs of the rows' projections can: a mistake moves all
    rows in one direction, while rounding moves each row in its own. Hence the pair of the tighter arithmetic and the mistake,
    whose effect is subtracted, is compared with the wider arithmetic and no mistake.

    Let d be the effect of the mistake and w the inverse variances under the tightest hypothesis. The statistic of row r is

        t_r = Σ_i w_ri d_ri e_ri, over the elements i of the row, for the residual e,

    with the variance V_r under a hypothesis, all correlations included. Up to a constant, −ln of the likelihood of t_r, taken as
    normal, is t_r²/(2 V_r) + ½ ln V_r. Its mean over the rows times the number of independent draws is a power at most 1 of the
    likelihood. The mean over any rows is such a power; over n rows its standard deviation is √(1/2n) nats a draw under the right
    hypothesis, since the variance of χ²₁/2 is 1/2.

    Args:
        residual: the candidate's array minus the oracle's, (..., n).
        effect: the effect d of the mistake, of the same shape.
        noises: the noise under each hypothesis, the tightest first; a deterministic bound b counts as a variance b²/3.
        fails: whether the mistake's filter fails under each hypothesis; the hypothesis then includes the mistake, whose effect is
            subtracted with the amplitude <e, d>/<d, d>.
        draw_count: the number of independent draws of noise.
    """
    judged = noises[0].judged
    weights, rows, residual = noises[0].precision * effect, _rows(judged), zeroed(residual, judged)
    corrected = residual - float(np.vdot(weights, residual)) / float(np.vdot(weights, effect)) * effect
    found = np.zeros((len(noises), len(rows)))
    for number, row in enumerate(rows):
        direction = np.zeros_like(weights)
        direction[row] = weights[row]
        with_mistake, without = (float(np.vdot(direction, e)) ** 2 for e in (corrected, residual))
        for which, (noise, failing) in enumerate(zip(noises, fails, strict=True)):
            squared = with_mistake if failing else without
            random, bound = noise.projected(direction)
            variance = random + bound**2 / 3.0
            if variance > 0.0:
                found[which, number] = squared / (2.0 * variance) + 0.5 * np.log(variance)
    return [float(nll) * draw_count for nll in found.mean(1)]


def _rows(judged: Mask) -> list[tuple[int, ...]]:
    """Return the indices of up to `ROWS` rows with a judged element, evenly spread; a scalar is one row."""
    rows = np.argwhere(judged.any(-1) if judged.ndim else judged)
    some = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(np.int64)
    return [tuple(int(i) for i in row) for row in rows[some]]
