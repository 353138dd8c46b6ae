"""One array, judged by a segment under one hypothesis: its statistics, their limits, and the filters of mistakes.

Every local judgement is made here, whether the array is the candidate's, that of a sample of its rows, or one from which the known
roundings of one order of operations are subtracted; and whether the segment is correct or has a mistake.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import BY_OPERATIONS, WIDEST_ARITHMETIC, FilterResult, LocalJudgement
from conformance.judge.fault_directions import energy_of_input_noise
from conformance.judge.fault_effects import BlockTotals, Effect, GrossEffects, filter_result
from conformance.judge.filters import projection_result
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import LocalSums, of_segment
from conformance.judge.observation import Block, Observation
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import Limits
from conformance.oracle.operations import by_operations

STATISTICS = 2  # RMS and largest error
DEVIATES, WEIGHTS = np.polynomial.hermite_e.hermegauss(5)  # five abscissas of the normal distribution
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def without_faults(observation: Observation) -> GrossEffects:
    """Return the effects of no mistakes, for a judgement by RMS and largest error alone."""
    return GrossEffects(observation, (), math.inf)


def sums_under(block: Block, segment: Segment, hypothesis: Hypothesis, elements: Mask, actual: Array | None = None) -> LocalSums:
    """Return the sums of the residual that a segment leaves of a block, or of another array in its place, at these elements."""
    is_known = segment is block.segment and elements is block.judged
    noise = block.noise(hypothesis) if is_known else of_segment(segment, hypothesis, elements)
    return LocalSums.of((block.actual if actual is None else actual) - segment.value, noise, block.counted)


@dataclass(frozen=True, eq=False)
class LocalTest:
    """The test of one activation, whose statistics and filters share a false-alarm probability.

    Attributes:
        observation: the activation.
        alpha: total false-alarm probability of the activation.
        gross: the mistakes that have filters, and the effects of gross ones.
        draws: number of independent draws of noise that likelihoods count; by default that of the independent rows.
    """

    observation: Observation
    alpha: float
    gross: GrossEffects
    draws: int | None = None

    def of_totals(
        self, hypothesis: Hypothesis, totals: BlockTotals, segment: Segment | None = None, *, is_derived: bool = False
    ) -> LocalJudgement:
        """Return the judgement that totals over the activation's blocks imply, without explanations.

        Args:
            hypothesis: the hypothesis.
            totals: the totals under the hypothesis.
            segment: the segment by which the array is judged, if it is not the correct one.
            is_derived: whether the array is not the candidate's, and does not contain the roundings of the segment's result.
        """
        error, limits = totals.errors.errors, self.limits(hypothesis, totals)
        filters = self.filters(hypothesis, totals, limits)
        rms = limits.rms if is_derived else rms_limit(error.rms, limits, self.observation, hypothesis, segment)
        draws = self.draws or self.observation.independent_rows(hypothesis, totals.hashes).size
        return LocalJudgement(
            str(hypothesis),
            hypothesis.arithmetic.name,
            error.error,
            totals.errors.mean_nll * draws,
            rms,
            limits.max,
            limits.filter,
            tuple(filters.values()),
            has_unexposed_steps=not self.observation.is_single_step,
        )

    def of_array(self, hypothesis: Hypothesis, segment: Segment, actual: Array | None = None) -> LocalJudgement:
        """Return the judgement by a segment of the candidate's array, or of one that is derived from it."""
        block = self.observation.whole
        effects: Mapping[int, Effect] = {}
        if self.gross.directions:
            (gross,) = self.gross.under(hypothesis)
            on_whole = enumerate(self.gross.on(block.segment))
            changes = {i: d.effect for i, d in on_whole if i not in gross and d.effect is not None}
            residual = (block.actual if actual is None else actual) - segment.value
            (subtle,) = self.gross.on_block(block, residual, changes, [block.noise(hypothesis)])
            effects = {**subtle, **gross}
        sums = sums_under(block, segment, hypothesis, block.judged, actual)
        totals = BlockTotals(sums, effects, segment.hashes(hypothesis.arithmetic.storage))
        return self.of_totals(hypothesis, totals, segment, is_derived=actual is not None)

    def by_operations(self, tightest: Hypothesis, passed: Collection[str]) -> LocalJudgement | None:
        """Return the judgement under the first order of rounded operations with which the activation passes, if there is one.

        It is that of actual − f̃(x) + f(x), for each order f̃ of the step f, with x the captured parents.

        Args:
            tightest: the hypothesis with the tightest arithmetic.
            passed: names of the arithmetics under which the activation passes.
        """
        if not may_be_by_operations(self.observation, tightest, passed):
            return None
        segment, actual = self.observation.whole.segment, self.observation.whole.actual
        for value in by_operations(segment.steps[segment.name], tightest.arithmetic, actual):
            local = self.of_array(tightest, segment, segment.value + (actual - value))
            if local.passes:
                return replace(local, hypothesis=BY_OPERATIONS, arithmetic=BY_OPERATIONS)
        return None

    def limits(self, hypothesis: Hypothesis, totals: BlockTotals) -> Limits:
        """Return the limits of RMS, largest error and filters, for rounding errors that are independent between rows."""
        rows = self.observation.independent_rows(hypothesis, totals.hashes)
        return Limits.of(rows, self.observation.count, STATISTICS + len(totals.effects), self.alpha)

    def filters(self, hypothesis: Hypothesis, totals: BlockTotals, limits: Limits) -> dict[int, FilterResult]:
        """Return the filter result of each mistake that changes a judged element, by its index in `gross`."""
        directions = self.gross.directions

        def confirmed(index: int, result: FilterResult) -> FilterResult | None:
            if not result.detected or hypothesis.parents == "as captured":
                return result
            whole, sums = self.observation.whole, totals.effects[index].sums
            direction = self.gross.on(whole.segment)[index]
            bound = sums.bound + energy_of_input_noise(direction, hypothesis, whole.noise(hypothesis))
            projection = replace(sums, bound=bound).projection
            return None if projection is None else projection_result(direction, projection, limits.filter)

        results = ((i, filter_result(directions[i], totals.effects[i], limits)) for i in sorted(totals.effects))
        return {i: final for i, result in results if result and (final := confirmed(i, result))}


def may_be_by_operations(observation: Observation, tightest: Hypothesis, passed: Collection[str]) -> bool:
    """Return whether orders of rounded operations are tried.

    They are not if results are stored in the format in which they are accumulated, if any arithmetic other than the widest passes,
    or if a parent of the step is not exposed.
    """
    return tightest.arithmetic.is_mixed and set(passed) <= {WIDEST_ARITHMETIC} and observation.is_single_step


def rms_limit(rms: float, limits: Limits, observation: Observation, hypothesis: Hypothesis, faulty: Segment | None = None) -> float:
    """Return the limit by which an RMS is judged: a larger one if results are so nearly equal that their errors are not random.

    The rounding errors of nearly equal results, such as the scores of equal tokens, are nearly equal. They are known: a correct
    candidate stores round(y + a), with the errors a that it makes before, whose deviation is that of the accumulation format. The
    limit is multiplied by the root of the mean over all elements of E (round(y + a) − y)²/σ², if that is more than 1. It is about 1
    for results that are spread over an ulp or more.

    Args:
        rms: the RMS of the candidate's errors, in sigma; nothing is computed if it is within its limit.
        limits: the limits for independent errors.
        observation: the activation; several steps, or a format in which results are accumulated, have no larger limit.
        hypothesis: the hypothesis under which the errors were measured.
        faulty: the step with a mistake, if the errors are those of its result.
    """
    arithmetic = hypothesis.arithmetic
    is_known = arithmetic.is_mixed and hypothesis.parents == "as captured" and observation.is_single_step
    if rms <= limits.rms or not is_known:
        return limits.rms
    block = observation.whole
    segment = faulty or block.segment
    step = segment.steps[segment.name]
    before = np.sqrt(step.roundings(replace(arithmetic, storage=arithmetic.accumulate)).variance())
    errors = (step.stored(arithmetic, deviate * before) - step.value for deviate in DEVIATES)
    squares = sum(weight * error**2 for weight, error in zip(WEIGHTS, errors, strict=True))
    scaled = zeroed(squares / of_segment(segment, hypothesis, block.judged).sigma ** 2, block.judged)
    return limits.rms * max(1.0, float(np.sqrt(scaled.sum() / np.count_nonzero(block.counted))))
