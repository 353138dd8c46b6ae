"""The problem of a failing step: the candidate's array under one hypothesis, its noise, and the trial of a set of faults.

A set of faults explains the array if the step passes once the oracle contains these faults: by its RMS, by its largest error, and
by the filters that detected that the residual is not noise.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from conformance.faults.changes import allows_errors
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import GROSS, is_gross, project
from conformance.judge.judged_array import rms_limit, sums_under
from conformance.judge.noise import ErrorSums, Noise, of_exact, of_segment
from conformance.judge.observation import Block, Observation
from conformance.judge.search.parameters import estimates, fitted
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.search.problem import FittedFaults, Problem, Trial
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Format
from conformance.numerics.thresholds import ErrorLimits, Limits
from conformance.oracle.linear_maps import Roundings


class StepProblem(Problem[Trial]):
    """A failing activation under one hypothesis.

    Attributes:
        noise: the error that a correct candidate may make.
        threshold: the threshold of |z|.
        draw_count: number of independent draws of the noise that `nll` counts.
        detected: the directions whose filters detected that the residual is not noise.
    """

    is_linear = True  # a set is extended only if its last fault accounts for its share of the distance
    draw_count = 1
    detected: Sequence[Direction] = ()

    def __init__(self, block: Block, storage: Format, noise: Noise, threshold: float) -> None:
        """Bind the activation to its noise and its limit."""
        super().__init__(block.segment, storage, block.actual, np.sqrt(noise.precision).reshape(1, -1))
        self.block, self.noise, self.threshold = block, noise, threshold

    @abstractmethod
    def noise_of(self, segment: Segment) -> Noise:
        """Return the noise of a segment, correct or faulty."""

    @abstractmethod
    def passes(self, segment: Segment) -> bool:
        """Return whether a segment accounts for the candidate's array, by RMS and largest error."""

    def nll(self, segment: Segment) -> float:
        """Return the negative log-likelihood of the candidate's array under a segment, in nats."""
        return 0.0

    def fit_unless_refuted(self, fit: FittedFaults, whole: Problem[Trial], *, own: bool) -> FittedFaults | None:
        """Return the set unless it leaves gross errors on this part."""
        return fit if self.passes(self.faulty(fit.placements).segment) else None

    def fit_on_whole(self, fit: FittedFaults) -> FittedFaults | None:
        """Return the set on the whole batch, with its parameters fitted there; None if one of its faults changes nothing."""
        on_whole = self.evaluate(fit.placements)
        return None if on_whole is None else fitted(self, on_whole)

    def judge(self, fit: FittedFaults, *, own: bool) -> Trial:
        """Return the trial of a set.

        Every parameter must differ from its correct value by more than its error. The effect of a fault without a parameter that
        allows additional errors must be found in spite of them: a set that passes because of these alone explains nothing.

        The trial is incomplete if a part of the effect of a fault without a parameter is left, or in excess.
        """
        segment = self.faulty(fit.placements).segment
        if not self.passes(segment):
            return Trial(fit, False)
        noise = self.noise_of(segment)
        left, effects = self.actual - segment.value, (d.effect for d in self.detected if d.effect is not None)
        if any(self._is_found(left, effect, noise) for effect in effects):
            return Trial(fit, False)
        shape, weights = segment.value.shape, np.sqrt(noise.precision).reshape(-1)

        def projected(direction: Array) -> tuple[float, float]:
            weights = direction.reshape(shape)
            variance, bound = noise.projected(weights)
            return variance, bound + abs(noise.stored(weights)) + abs(noise.summed(weights))

        numbers = estimates(self, fit, projected, weights)
        explains = all(e is None or e.is_wrong(self.threshold) for e in numbers)
        if not explains:
            return Trial(fit, False, numbers=numbers)
        found = list(self._effects_without_number(fit, segment))
        if not all(self._is_found(left + effect, effect, noise) for effect, allows_errors in found if allows_errors):
            return Trial(fit, False)
        incomplete = any(self._is_found(left, effect, noise) for effect, _ in found)
        return Trial(fit, True, incomplete=incomplete, numbers=numbers)

    def _is_found(self, left: Array, effect: Array, noise: Noise) -> bool:
        """Return whether a residual contains more of an effect, of either sign, than noise does."""
        found = project(left, effect, noise)
        return found is not None and abs(found.z) > self.threshold

    def _effects_without_number(self, fit: FittedFaults, segment: Segment) -> Iterator[tuple[Array, bool]]:
        """Yield the effect of each fault of a set that has no parameter, given the others, and whether it allows further errors."""
        for index, placement in enumerate(fit.placements):
            if placement.fault.parameter is None:
                others = [*fit.placements[:index], *fit.placements[index + 1 :]]
                effect = segment.value - self.faulty(others).segment.value
                yield effect, any(allows_errors(segment.steps[place]) for place in placement.places)

    def is_determined(self, trial: Trial) -> bool:
        """Return whether a set of faults changes more different elements than it has numbers with unusual values."""
        fitted_numbers = [e for e in trial.numbers if e is not None and not e.is_usual(self.storage, self.threshold)]
        return self.determines_more(len(fitted_numbers), self.faulty(trial.fit.placements).segment)

    def determines_more(self, numbers: int, segment: Segment) -> bool:
        """Return whether a faulty segment changes more different elements than it has fitted numbers, if it has any.

        Numbers that are as many as the equations from which they are fitted explain any result. Elements whose correct values are
        equal in float32, and the candidate's as well, are one equation, such as those of the same text in several rows.
        """
        right, faulty = np.broadcast_arrays(self.right.value, segment.value)
        changed = self.noise.judged & (faulty != right)
        with np.errstate(over="ignore"):
            equations = np.stack([right[changed].astype(np.float32), self.actual[changed].astype(np.float32)])
        for _ in range(numbers):
            equations = equations[:, (equations != equations[:, :1]).any(0)]
        return not numbers or equations.size > 0

    def weights_of(self, fit: FittedFaults) -> Array:
        """Return the weights for the noise of the segment with these faults, (1, N)."""
        noise = self.noise_of(self.faulty(fit.placements).segment)
        return np.sqrt(noise.precision).reshape(1, -1)


class RoundedStep(StepProblem):
    """A failing activation whose steps round, and the faults that may explain it.

    Attributes:
        subtle: the faults without a parameter that may explain the result alone: they move no element by far more than the largest
            error.
    """

    def __init__(
        self,
        observation: Observation,
        hypothesis: Hypothesis,
        limits: Limits,
        block: Block,
        detected: Sequence[Direction] = (),
        subtle: Sequence[Direction] = (),
        draw_count: int = 1,
    ) -> None:
        """Bind the activation, or a block of it, to a hypothesis and the limits of the whole."""
        super().__init__(block, hypothesis.arithmetic.storage, block.noise(hypothesis), limits.filter)
        self.observation, self.hypothesis, self.limits = observation, hypothesis, limits
        self.detected, self.subtle, self.draw_count = detected, subtle, draw_count
        self.rms_limit = limits.rms

    def noise_of(self, segment: Segment) -> Noise:
        """Return the noise of the elements for which a fault has to account."""
        return of_segment(segment, self.hypothesis, self.block.elements_to_explain)

    def errors(self, segment: Segment) -> ErrorSums:
        """Return the errors that a segment leaves, of the elements for which a fault has to account."""
        return sums_under(self.block, segment, self.hypothesis, self.block.elements_to_explain).errors

    def passes(self, segment: Segment) -> bool:
        """Return whether the errors are within the limits of a correct step."""
        errors = self.errors(segment)
        rms = rms_limit(errors.rms, self.limits, self.observation, self.hypothesis, segment)
        return errors.within(ErrorLimits(rms, self.limits.max))

    def nll(self, segment: Segment) -> float:
        """Return the negative log-likelihood over the elements of `LocalJudgement.nll`."""
        return sums_under(self.block, segment, self.hypothesis, self.block.judged).mean_nll * self.draw_count

    def part(self, placements: Sequence[FaultPlacement]) -> StepProblem:
        """Return the problem on the rows of the batch where these faults leave the largest residual, if it is gross there."""
        left = self.noise.precision * np.square(self.actual - self.faulty(placements).segment.value)
        block = self.observation.worst_rows(left)
        if block is None:
            return self
        largest = float(np.sqrt(left[block.first : block.first + block.network.batch.size].max()))
        return WorstRows(self, block) if is_gross(largest, self.limits.max) else self


class WorstRows(RoundedStep):
    """The rows of an activation with the largest residual, on which a segment is refuted by gross errors alone.

    The largest error and Σ e² of the whole batch are at least those of a part. Parameters fitted to the whole batch change errors
    by only a few sigma, so gross errors remain beyond their limit.
    """

    def __init__(self, whole: RoundedStep, block: Block) -> None:
        """Bind the rows to the problem of the whole; the RMS of rows with a large residual has no limit but that of every run."""
        super().__init__(whole.observation, whole.hypothesis, whole.limits, block)
        self.rms_limit = Problem.rms_limit

    def passes(self, segment: Segment) -> bool:
        """Return whether no error is gross."""
        errors, count = self.errors(segment), self.observation.count
        return not is_gross(errors.largest, self.limits.max) and errors.squares <= count * (GROSS * self.limits.rms) ** 2

    def part(self, placements: Sequence[FaultPlacement]) -> StepProblem:
        """Return this problem."""
        return self


class ExactStep(StepProblem):
    """An exact activation that differs, in which a fault may leave only what its own rounding explains."""

    def __init__(self, block: Block, hypothesis: Hypothesis, threshold: float) -> None:
        """Bind the activation to the hypothesis under which a fault rounds."""
        storage = hypothesis.arithmetic.storage
        super().__init__(block, storage, of_exact(block.segment.value, storage, block.judged), threshold)
        self.hypothesis = hypothesis

    def _roundings(self, segment: Segment) -> Roundings:
        return segment.steps[segment.name].roundings(self.hypothesis.arithmetic)

    def noise_of(self, segment: Segment) -> Noise:
        """Return the noise of an exact step, with the roundings of the fault."""
        return of_exact(self.right.value, self.storage, self.block.judged, self._roundings(segment))

    def passes(self, segment: Segment) -> bool:
        """Return whether every element is within the roundings of the fault."""
        rounding = self._roundings(segment)
        allowed = self.threshold * np.sqrt(rounding.variance()) + rounding.bound
        return bool((np.abs(self.storage.round(segment.value) - self.actual) <= allowed)[self.block.judged].all())
