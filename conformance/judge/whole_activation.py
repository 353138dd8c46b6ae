"""The judgement of a whole activation under one hypothesis, and the data of the search for explanations if it fails."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from conformance.judge.block_totals import BlockTotals
from conformance.judge.error_distribution import ErrorDistribution, distribution_of
from conformance.judge.evidence import FilterResult, LocalJudgement
from conformance.judge.fault_directions import Direction, energy_of_input_noise
from conformance.judge.fault_effects import GrossEffects, filter_result
from conformance.judge.filters import GROSS, is_gross, projection_result
from conformance.judge.limits import limits_for, limits_of
from conformance.judge.noise import Noise, of_segment
from conformance.judge.observation import Observation
from conformance.judge.screen import local_of
from conformance.judge.segment import Segment
from conformance.judge.step_problem import StepProblem
from conformance.judge.sums import LocalSums, in_sigma
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Mask
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import Limits


@dataclass(frozen=True, eq=False)
class Judged:
    """The judgement of an activation under one hypothesis, and the data of the search for explanations if it fails.

    Attributes:
        local: the judgement.
        detected: the faults whose filters found that the residual is not noise.
        state_problem: function that returns the data of the search.
    """

    local: LocalJudgement
    detected: Sequence[Direction]
    state_problem: Callable[[], StepProblem]

    @cached_property
    def problem(self) -> StepProblem:
        """The data of the search for explanations."""
        return self.state_problem()


@dataclass(frozen=True, eq=False)
class WholeActivation:
    """A whole activation, to be judged under several hypotheses.

    Attributes:
        observation: the activation.
        gross_effects: the faults that are looked for, and the effects of gross ones.
        near: the same faults, on the whole activation.
        draw_count: number of independent draws of the noise that the likelihood counts.
        alpha: total false-alarm probability of the activation.
    """

    observation: Observation
    gross_effects: GrossEffects
    near: Sequence[Direction]
    draw_count: int
    alpha: float

    def judge(self, hypothesis: Hypothesis, totals: BlockTotals) -> Judged:
        """Return the judgement under one hypothesis, given the totals over the activation's blocks."""
        errors, limits = totals.errors.errors, self._limits(hypothesis, totals)
        filters = self._filters(hypothesis, totals, limits)
        detected = [self.near[i] for i, found in filters.items() if found.detected]
        local = self._local(hypothesis, totals, limits_for(errors.rms, limits, self.observation, hypothesis), filters)
        if not local.passes:
            local = replace(local, distribution=self._distribution_of_failure(hypothesis))
        return Judged(local, detected, partial(self._problem, hypothesis, limits, detected, errors.largest))

    def judge_derived(self, hypothesis: Hypothesis, actual: Array) -> LocalJudgement:
        """Return the judgement of an array that is derived from the candidate's; it does not contain the result's roundings."""
        totals = self._totals_of(hypothesis, actual)
        limits = self._limits(hypothesis, totals)
        return self._local(hypothesis, totals, limits, self._filters(hypothesis, totals, limits))

    def _totals_of(self, hypothesis: Hypothesis, actual: Array) -> BlockTotals:
        """Return the totals for another array in place of the candidate's."""
        block, noise = self.observation.whole, self.observation.whole.noise(hypothesis)
        residual, (gross,) = actual - block.segment.value, self.gross_effects.under(hypothesis)
        changes = {i: d.effect for i, d in enumerate(self.near) if i not in gross and d.effect is not None}
        (effects,) = self.gross_effects.on_block(block, residual, changes, [noise])
        hashes = block.segment.hashes(hypothesis.arithmetic.storage)
        return BlockTotals(LocalSums.of(residual, noise, block.counted), {**effects, **gross}, hashes)

    def _limits(self, hypothesis: Hypothesis, totals: BlockTotals) -> Limits:
        """Return the limits of the statistics, among which α is shared."""
        return limits_of(self.observation, hypothesis, totals.hashes, len(totals.effects), self.alpha)

    def _filters(self, hypothesis: Hypothesis, totals: BlockTotals, limits: Limits) -> dict[int, FilterResult]:
        """Return the filter result of each fault that changes a judged element, by its index in `near`."""

        def confirmed(index: int, found: FilterResult) -> FilterResult | None:
            if not found.detected or hypothesis.parents == "as captured":
                return found
            look, sums = self.near[index], totals.effects[index].sums
            bound = sums.bound + energy_of_input_noise(look, hypothesis, self.observation.whole.noise(hypothesis))
            projection = replace(sums, bound=bound).projection
            return None if projection is None else projection_result(look, projection, limits.filter)

        seen = ((i, filter_result(self.near[i], totals.effects[i], limits)) for i in sorted(totals.effects))
        return {i: final for i, found in seen if found and (final := confirmed(i, found))}

    def _local(
        self, hypothesis: Hypothesis, totals: BlockTotals, limits: Limits, filters: Mapping[int, FilterResult]
    ) -> LocalJudgement:
        """Return the judgement, without explanations."""
        local = local_of(hypothesis, totals, self.draw_count, limits)
        has_unexposed_steps = not self.observation.whole.segment.is_single_step
        return replace(local, filters=tuple(filters.values()), has_unexposed_steps=has_unexposed_steps)

    def _distribution_of_failure(self, hypothesis: Hypothesis) -> ErrorDistribution:
        block = self.observation.whole
        scaled = in_sigma(block.residual, block.noise(hypothesis))
        return distribution_of(block.activation, scaled, block.judged, "sigma", block.head_size, fails=True)

    def _problem(self, hypothesis: Hypothesis, limits: Limits, detected: Sequence[Direction], largest: float) -> StepProblem:
        """Return the data of the search for explanations, given the largest error in sigma."""
        block, noise = self.observation.whole, self.observation.whole.noise(hypothesis)
        actual, (gross,) = block.actual, self.gross_effects.under(hypothesis)
        most = largest + GROSS * limits.max  # a fault that moves an element by more leaves a gross error
        subtle = [d for i, d in enumerate(self.near) if d.parameter is None and (i not in gross or gross[i].size <= most)]

        def sums_of(faulty: Segment, elements: Mask) -> LocalSums:
            return LocalSums.of(actual - faulty.value, of_segment(faulty, hypothesis, elements), block.counted)

        def passes(faulty: Segment) -> bool:
            errors = sums_of(faulty, block.elements_to_explain).errors
            return errors.within(limits_for(errors.rms, limits, self.observation, hypothesis, faulty))

        def part(faulty: Segment) -> StepProblem | None:
            left = noise.precision * np.square(actual - faulty.value)
            return _problem_on_worst_rows(self.observation, hypothesis, limits, left)

        return StepProblem(
            block.segment,
            hypothesis.arithmetic.storage,
            actual,
            noise,
            limits.filter,
            noise_of=lambda faulty: of_segment(faulty, hypothesis, block.elements_to_explain),
            passes=passes,
            # over the elements of `LocalJudgement.nll`
            nll=lambda faulty: sums_of(faulty, block.judged).mean_nll * self.draw_count,
            detected=detected,
            subtle=subtle,
            part=part,
            draw_count=self.draw_count,
            rms_limit=limits.rms,
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
        return of_segment(faulty, hypothesis, block.elements_to_explain)

    def passes(faulty: Segment) -> bool:
        errors = LocalSums.of(block.actual - faulty.value, noise_of(faulty), block.counted).errors
        return not is_gross(errors.largest, limits.max) and errors.squares <= observation.count * (GROSS * limits.rms) ** 2

    noise = of_segment(block.segment, hypothesis, block.judged)
    storage = hypothesis.arithmetic.storage
    return StepProblem(block.segment, storage, block.actual, noise, limits.filter, noise_of, passes, lambda _: 0.0)
