"""The problem of a failing step: the candidate's array under one hypothesis, its noise, and the trial of a set of faults.

A set of faults explains the array if the step passes once the oracle contains these faults: by its RMS, by its largest error, and
by the filters that detected that the residual is not noise.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.faults.changes import allows_errors
from conformance.judge.evidence import Estimate
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import project
from conformance.judge.noise import Noise
from conformance.judge.search.parameters import estimates, fitted
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.search.problem import FittedFaults, Problem, Trial
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array, Format


@dataclass(frozen=True, eq=False)
class StepTrial(Trial):
    """A trial of a step's faults.

    Attributes:
        numbers: the estimate of each fault's parameter; None for a fault without a parameter.
    """

    numbers: tuple[Estimate | None, ...] = ()


class StepProblem(Problem[StepTrial]):
    """A failing activation under one hypothesis.

    Attributes:
        noise: the error that a correct candidate may make.
        threshold: the threshold of |z|.
        noise_of: returns the noise of a segment, correct or faulty.
        passes: returns whether a segment accounts for the candidate's array, by RMS and largest error.
        nll: returns the negative log-likelihood of the candidate's array under a segment, in nats.
        draw_count: number of independent draws of the noise that `nll` counts.
        detected: the directions whose filters detected that the residual is not noise.
        subtle: the faults without a parameter that may explain the result alone: they move no element by far more than the largest
            error.
    """

    is_linear = True  # a set is extended only if its last fault accounts for its share of the distance

    def __init__(
        self,
        segment: Segment,
        storage: Format,
        actual: Array,
        noise: Noise,
        threshold: float,
        noise_of: Callable[[Segment], Noise],
        passes: Callable[[Segment], bool],
        nll: Callable[[Segment], float],
        detected: Sequence[Direction] = (),
        subtle: Sequence[Direction] = (),
        part: Callable[[Segment], "StepProblem | None"] = lambda _: None,
        draw_count: int = 1,
        rms_limit: float = Problem.rms_limit,
    ) -> None:
        """Bind the activation to its noise and its limits.

        `part` returns the same problem on the rows of the batch where a segment leaves the largest residual, or None if a part is
        not informative enough; a segment that leaves gross errors there is refuted.
        """
        super().__init__(segment, storage, actual, np.sqrt(noise.precision).reshape(1, -1))
        self.noise, self.threshold, self.noise_of, self.passes, self.nll = noise, threshold, noise_of, passes, nll
        self.detected, self.subtle, self.draw_count, self._part = detected, subtle, draw_count, part
        self.rms_limit = rms_limit

    def part(self, placements: Sequence[FaultPlacement]) -> "StepProblem":
        """Return the problem on the rows of the batch where these faults leave the largest residual, or this problem."""
        return self._part(self.faulty(placements).segment) or self

    def fit_unless_refuted(self, fit: FittedFaults, whole: Problem[StepTrial], *, own: bool) -> FittedFaults | None:
        """Return the set unless it leaves gross errors on this part."""
        return fit if self.passes(self.faulty(fit.placements).segment) else None

    def fit_on_whole(self, fit: FittedFaults) -> FittedFaults | None:
        """Return the set on the whole batch, with its parameters fitted there; None if one of its faults changes nothing."""
        on_whole = self.evaluate(fit.placements)
        return None if on_whole is None else fitted(self, on_whole)

    def judge(self, fit: FittedFaults, *, own: bool) -> StepTrial:
        """Return the trial of a set.

        Every parameter must differ from its correct value by more than its error. The effect of a fault without a parameter that
        allows additional errors must be found in spite of them: a set that passes because of these alone explains nothing.

        The trial is incomplete if a part of the effect of a fault without a parameter is left, or in excess.
        """
        segment = self.faulty(fit.placements).segment
        if not self.passes(segment):
            return StepTrial(fit, False)
        noise = self.noise_of(segment)
        left, effects = self.actual - segment.value, (d.effect for d in self.detected if d.effect is not None)
        if any(self._is_found(left, effect, noise) for effect in effects):
            return StepTrial(fit, False)
        shape, weights = segment.value.shape, np.sqrt(noise.precision).reshape(-1)

        def projected(direction: Array) -> tuple[float, float]:
            weights = direction.reshape(shape)
            variance, bound = noise.projected(weights)
            return variance, bound + abs(noise.stored(weights)) + abs(noise.summed(weights))

        numbers = estimates(self, fit, projected, weights)
        explains = all(e is None or e.is_wrong(self.threshold) for e in numbers)
        if not explains:
            return StepTrial(fit, False, numbers=numbers)
        found = list(self._effects_without_number(fit, segment))
        if not all(self._is_found(left + effect, effect, noise) for effect, allows_errors in found if allows_errors):
            return StepTrial(fit, False)
        incomplete = any(self._is_found(left, effect, noise) for effect, _ in found)
        return StepTrial(fit, True, incomplete=incomplete, numbers=numbers)

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

    def is_determined(self, trial: StepTrial) -> bool:
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

    def tie(self, fit: FittedFaults) -> float:
        """Return ∞: all sets that explain the array are reported, and compared by their likelihoods."""
        return math.inf

    def weights_of(self, fit: FittedFaults) -> Array:
        """Return the weights for the noise of the segment with these faults, (1, N)."""
        noise = self.noise_of(self.faulty(fit.placements).segment)
        return np.sqrt(noise.precision).reshape(1, -1)
