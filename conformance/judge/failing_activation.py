"""Judgement of failing activations: every hypothesis and every filter is evaluated, and explanations are searched for.

Faults of the activation's own layer are always looked for. If a candidate does not expose whole layers, faults in earlier layers
are looked for here only, also in several layers at once: they name the mistake, and they add no tests that could raise a false
alarm.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from conformance.faults.fault import ROWS
from conformance.judge import Depth
from conformance.judge.error_distribution import distribution_of
from conformance.judge.evidence import BY_OPERATIONS, Error, Explanation, FilterResult, LocalJudgement
from conformance.judge.explanation_search import (
    explanations,
    fitted_explanations,
    is_of_catalogue,
    sets_of_faults,
)
from conformance.judge.fault_directions import Direction, direction, in_other_layers, possible_directions
from conformance.judge.fault_effects import BlockTotals
from conformance.judge.filters import GROSS, gross_result, is_gross, largest_element, project, projection_result, row_nlls
from conformance.judge.judged_array import LocalTest, may_be_by_operations, sums_under
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import ErrorSums, Noise, in_sigma, of_exact
from conformance.judge.observation import Block, Observation
from conformance.judge.search.first_order_screen import ranked
from conformance.judge.step_problem import ExactStep, RoundedStep, StepProblem
from conformance.numerics.arithmetic import Hypothesis, still_needed
from conformance.numerics.formats import Array, Format
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import ErrorLimits, Limits, projection_threshold
from conformance.oracle.linear import Linear
from conformance.oracle.operations import by_operations
from conformance.oracle.softmax import Probabilities

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


@dataclass(frozen=True, eq=False)
class Judged:
    """The judgement of a whole activation under one hypothesis, and what a search for explanations reads if it fails.

    Attributes:
        test: the test, in memory, whose draws are counted.
        hypothesis: the hypothesis.
        totals: the totals over the activation's blocks under it.
        local: the judgement, without explanations.
    """

    test: LocalTest
    hypothesis: Hypothesis
    totals: BlockTotals
    local: LocalJudgement

    @classmethod
    def of(cls, test: LocalTest, hypothesis: Hypothesis, totals: BlockTotals) -> "Judged":
        """Return the judgement, of a failure with the distribution of its error."""
        local, block = test.of_totals(hypothesis, totals), test.observation.whole
        if not local.passes:
            scaled = in_sigma(block.residual, block.noise(hypothesis))
            distribution = distribution_of(block.activation, scaled, block.judged, "sigma", block.head_size)
            local = replace(local, distribution=distribution)
        return cls(test, hypothesis, totals, local)

    @cached_property
    def limits(self) -> Limits:
        """The limits for errors that are independent between rows."""
        return self.test.limits(self.hypothesis, self.totals)

    @cached_property
    def detected(self) -> Sequence[Direction]:
        """The faults whose filters found that the residual is not noise."""
        near = self.test.gross.on(self.test.observation.whole.segment)
        return [near[i] for i, f in self.test.filters(self.hypothesis, self.totals, self.limits).items() if f.detected]

    @cached_property
    def problem(self) -> RoundedStep:
        """The data of the search for explanations."""
        observation, limits, (gross,) = self.test.observation, self.limits, self.test.gross.under(self.hypothesis)
        most = self.totals.errors.errors.largest + GROSS * limits.max  # a fault that moves an element by more leaves a gross error
        near = enumerate(self.test.gross.on(observation.whole.segment))
        subtle = [d for i, d in near if d.parameter is None and (i not in gross or gross[i].size <= most)]
        return RoundedStep(observation, self.hypothesis, limits, observation.whole, self.detected, subtle, self.test.draws or 1)


def judge_failing(
    test: LocalTest,
    totals: Mapping[Hypothesis, BlockTotals],
    unexposed_layers: UnexposedLayers | None = None,
    known: Collection[str] = (),
    *,
    explained: bool = True,
) -> tuple[LocalJudgement, ...]:
    """Judge a whole activation that fails under some arithmetic, with explanations if it fails under each.

    Args:
        test: the test of the activation, in memory.
        totals: the totals over its blocks under each hypothesis that may be needed, the one with the tightest arithmetic first.
        unexposed_layers: the search for mistakes in several unexposed layers.
        known: names of the faults that explained another activation; they are tried before all others.
        explained: whether an activation that fails under each is explained; there are no judgements of it otherwise.
    """
    observation, (tightest, *_) = test.observation, totals
    test = replace(test, draws=observation.independent_draw_count(list(totals)))
    near = test.gross.on(observation.whole.segment)
    judged: list[Judged] = []
    passed: set[str] = set()
    for hypothesis in still_needed(totals, passed):
        judged.append(Judged.of(test, hypothesis, totals[hypothesis]))
        passed |= {judged[-1].local.arithmetic} if judged[-1].local.passes else set()
    if by_operations := test.by_operations(tightest, passed):
        return (by_operations,)
    if not (passed or explained):
        return ()
    likeliest = _mistakes_by_operations(test, tightest, near, judged[0].local, passed)
    mistaken = replace(judged[0].local, hypothesis=BY_OPERATIONS, arithmetic=BY_OPERATIONS, explanations=likeliest)
    if passed:
        named = _named_where_failing(_with_rows(test, judged, near), passed, known)
        return (*named, mistaken) if likeliest else tuple(named)
    return (mistaken,) if likeliest else _explained(observation, judged, near, unexposed_layers, known)


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
    by_one = _with_explanations(found, lambda problem, known, _: sets_of_faults(problem, faults, known, 1), known)
    if any(local.named for local in by_one):
        return by_one
    return _with_explanations(found, lambda problem, _, per_token: fitted_explanations(problem, per_token=per_token), known)


def _with_rows(test: LocalTest, found: Sequence[Judged], near: Sequence[Direction]) -> list[Judged]:
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
    found_nlls = row_nlls(test.observation.whole.residual, effect, noises, fails, test.draws or 1)
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
        if judged.local.arithmetic in passed:
            yield judged.local
            continue
        # An incorrect parameter that no filter has detected is not looked for within a wider arithmetic's noise.
        tried = [*judged.problem.detected, *judged.problem.subtle, *late]
        yield replace(judged.local, explanations=sets_of_faults(judged.problem, tried, known, 1))


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


def _mistakes_by_operations(
    test: LocalTest, hypothesis: Hypothesis, near: Sequence[Direction], local: LocalJudgement, passed: Collection[str]
) -> tuple[Explanation, ...]:
    """Return the likeliest mistake in a step of rounded operations, if the step with it passes under the tightest arithmetic.

    Only mistakes without a parameter are tried, and, since each step has many orders of operations, only those whose faulty step
    is closer to the candidate's array than the correct step is. Mistakes of a softmax or a linear layer are not tried: several of
    them are the same function, of which the search for explanations selects one.

    Mistakes that give the same result, such as two that use the weights of the same other layer, are all returned. The likelihood
    is that under the nearest of several orders of operations; the logarithm of their number is its cost.
    """
    block, segment = test.observation.whole, test.observation.whole.segment
    if not may_be_by_operations(test.observation, hypothesis, passed):
        return ()
    if isinstance(segment.steps[segment.name], Probabilities | Linear):
        return ()
    tried, likely = 0, list[tuple[float, Direction]]()
    for mistake in near:
        faulty = mistake.faulty if mistake.parameter is None else None
        if faulty is None or not _is_closer(faulty.value, block):
            continue
        for value in by_operations(faulty.steps[segment.name], hypothesis.arithmetic, block.actual):
            tried += 1
            derived = faulty.value + (block.actual - value)
            sums = sums_under(block, faulty, hypothesis, block.elements_to_explain, derived)
            if sums.errors.within(ErrorLimits(local.rms_threshold, local.max_threshold)):
                likely.append((sums.mean_nll * (test.draws or 1), mistake))
    least = min((nll for nll, _ in likely), default=0.0)
    explanations = []
    for mistake in (mistake for nll, mistake in likely if nll == least):
        projection = project(block.residual, mistake.known_effect, block.noise(hypothesis))
        assert projection is not None  # The mistake moves a judged element; otherwise the step would pass without it.
        result = projection.result(mistake.fault.name, mistake.step, detected=True)
        explanations.append(Explanation((result,), 0, least + math.log(tried)))
    return tuple(explanations)


def _is_closer(value: Array, block: Block) -> bool:
    """Return whether a faulty result is closer to the judged elements of the candidate's array than the correct one is."""
    faulty, right = (np.where(block.judged, x, 0.0) for x in (block.actual - value, block.residual))
    return float(np.vdot(faulty, faulty)) < float(np.vdot(right, right))


def judge_exact_steps(observation: Observation, hypothesis: Hypothesis, alpha: float, depth: Depth) -> LocalJudgement:
    """Judge an exact activation: any difference fails.

    A fault is named if it leaves no difference at all; a fault that computes values that should be looked up, if it leaves only a
    difference that its rounding explains.
    """
    threshold, storage = projection_threshold(alpha), hypothesis.arithmetic.storage
    error = Error(None, None, 0.0, (0,) * observation.actual.ndim)
    if not observation.is_unchanged_copy:
        error = ErrorSums.of(np.zeros(0), 0, zeroed(observation.whole.residual, observation.whole.judged)).exact
    local = LocalJudgement("exact", "exact", error, 0.0, 0.0, 0.0, threshold)
    if depth == "screen":
        return local
    local = replace(local, filters=tuple(_filters_of_exact(observation, storage, threshold)))
    if local.passes:
        return local
    if observation.on_device:
        return judge_exact_steps(observation.in_memory, hypothesis, alpha, depth)
    block = observation.whole
    with np.errstate(over="ignore"):
        ulps = block.residual / storage.ulp(block.segment.value)
    local = replace(local, distribution=distribution_of(block.activation, ulps, block.judged, "ulp", block.head_size))

    tried = [d for late in (False, True) for d in possible_directions(block.segment, storage, after_failure=late)]
    return replace(local, explanations=explanations(ExactStep(block, hypothesis, threshold), tried))


def _filters_of_exact(observation: Observation, storage: Format, threshold: float) -> Iterator[FilterResult]:
    """Yield the filter result of each mistake that changes an exact activation, of one that is gross on the probe by that alone."""
    whole, probe = observation.whole, observation.probe
    for near in possible_directions(probe.segment, storage):
        effect = None if near.fault.extent == ROWS else near.effect
        if effect is not None and is_gross(size := largest_element(effect, _nominal(probe, storage)), threshold):
            yield gross_result(near, size)
        elif (on_whole := near.on(whole.segment)).effect is not None:
            noise = _nominal(whole, storage)
            if is_gross(size := largest_element(on_whole.known_effect, noise), threshold):
                yield gross_result(on_whole, size)
            elif projection := project(whole.residual, on_whole.known_effect, noise):
                yield projection_result(on_whole, projection, threshold)


def _nominal(block: Block, storage: Format) -> Noise:
    return of_exact(block.segment.value, storage, block.judged)
