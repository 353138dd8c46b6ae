"""The judgement of a whole activation under one hypothesis, and the data of the search for explanations if it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.block_totals import Effect, GrossEffects, filter_result
from conformance.judge.error_distribution import distribution_of
from conformance.judge.evidence import FilterResult, LocalJudgement
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import GROSS, ProjectionSums, gross_result, is_gross, matched, projection_result
from conformance.judge.input_noise import energy_of_input_noise
from conformance.judge.limits import limits_for, limits_of
from conformance.judge.noise import Noise, of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.judge.step_problem import StepProblem
from conformance.judge.sums import LocalSums, in_sigma
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import Limits

_Filter = tuple[Direction, FilterResult]


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

    def judge(
        self, hypothesis: Hypothesis, actual: Array, effects: Mapping[int, Effect] | None = None
    ) -> tuple[LocalJudgement, StepProblem]:
        """Return the judgement under one hypothesis, and the data of the search for explanations if it fails.

        Args:
            hypothesis: the hypothesis.
            actual: the array that is judged: the candidate's, or one derived from it.
            effects: the faults' effects, by their index in `near`; they are computed if they are not given.
        """
        block, (gross,) = self.observation.whole, self.gross_effects.under(hypothesis)
        limits = self._limits(hypothesis, gross, effects)
        filters = self._filters(hypothesis, actual, limits, gross, effects)
        sums = LocalSums.of(actual - block.segment.value, block.noise(hypothesis), block.counted)
        most = sums.errors.largest + GROSS * limits.max  # a fault that moves an element by more leaves a gross error
        subtle = [d for i, d in enumerate(self.near) if d.parameter is None and (i not in gross or gross[i].size <= most)]
        problem = self._problem(hypothesis, actual, limits, filters, subtle)
        if actual is block.actual:  # A derived array does not contain the rounding errors of the result.
            limits = limits_for(sums.errors.rms, limits, self.observation, hypothesis)
        return self._local(hypothesis, actual, limits, filters, sums), problem

    def _limits(self, hypothesis: Hypothesis, gross: Mapping[int, Effect], effects: Mapping[int, Effect] | None) -> Limits:
        """Return the limits of the statistics, among which α is shared."""
        hashes = self.observation.whole.segment.hashes(hypothesis.arithmetic.storage)
        tests = sum(i in gross or d.effect is not None for i, d in enumerate(self.near)) if effects is None else len(effects)
        return limits_of(self.observation, hypothesis, hashes, tests, self.alpha)

    def _filters(
        self,
        hypothesis: Hypothesis,
        actual: Array,
        limits: Limits,
        gross: Mapping[int, Effect],
        effects: Mapping[int, Effect] | None,
    ) -> list[_Filter]:
        """Return the filter result of each fault that changes a judged element."""
        noise = self.observation.whole.noise(hypothesis)

        def result(index: int, look: Direction) -> FilterResult | None:
            if index in gross:
                return gross_result(look, gross[index].size)
            if effects is not None:
                return filter_result(look, effects[index], limits) if index in effects else None
            return None if look.effect is None else matched(look, actual, noise, limits.filter, limits.max)

        def confirmed(index: int, look: Direction, found: FilterResult) -> FilterResult | None:
            if not found.detected or hypothesis.parents == "as captured":
                return found
            residual = actual - look.base.value
            sums = ProjectionSums.of(residual, look.known_effect, noise) if effects is None else effects[index].sums
            bound = sums.bound + energy_of_input_noise(look, hypothesis, noise)
            projection = replace(sums, bound=bound).projection
            return None if projection is None else projection_result(look, projection, limits.filter)

        found = ((i, look, seen) for i, look in enumerate(self.near) if (seen := result(i, look)))
        return [(look, final) for i, look, seen in found if (final := confirmed(i, look, seen))]

    def _local(
        self, hypothesis: Hypothesis, actual: Array, limits: Limits, filters: Sequence[_Filter], sums: LocalSums
    ) -> LocalJudgement:
        """Return the judgement, without explanations."""
        block = self.observation.whole
        local = LocalJudgement(
            str(hypothesis),
            hypothesis.arithmetic.name,
            sums.errors.error,
            sums.mean_nll * self.draw_count,
            limits.rms,
            limits.max,
            limits.filter,
            tuple(found for _, found in filters),
            has_unexposed_steps=not block.segment.is_single_step,
        )
        scaled, size = in_sigma(actual - block.segment.value, block.noise(hypothesis)), block.head_size
        distribution = distribution_of(block.activation, scaled, block.judged, "sigma", size, fails=not local.passes)
        return replace(local, distribution=distribution)

    def _problem(
        self, hypothesis: Hypothesis, actual: Array, limits: Limits, filters: Sequence[_Filter], subtle: Sequence[Direction]
    ) -> StepProblem:
        """Return the data of the search for explanations."""
        block, noise = self.observation.whole, self.observation.whole.noise(hypothesis)

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
            detected=[look for look, found in filters if found.detected],
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
