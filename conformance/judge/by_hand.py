"""Steps that a candidate writes by hand: the known effect of the roundings of their operations is subtracted from its result."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from conformance.judge.evidence import WIDEST
from conformance.judge.fault_directions import Direction
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle.operations import by_operations


def by_hand(observation: Observation, tightest: Hypothesis, passed: Collection[str]) -> Iterator[Array]:
    """For each order of operations f̃, actual − f̃(x) + f(x), x the captured parents: to be judged under the tightest arithmetic.

    Nothing where results are stored as they are accumulated, where any arithmetic other than the widest passes, or where the
    candidate hides a parent of the step.
    """
    if not tightest.arithmetic.is_mixed or not set(passed) <= {WIDEST}:
        return
    block, segment = observation.whole, observation.whole.segment
    if segment.is_single_step:
        for value in by_operations(segment.steps[segment.name], tightest.arithmetic, block.actual):
            yield segment.value + (block.actual - value)


def mistaken_by_hand(
    observation: Observation, tightest: Hypothesis, mistakes: Iterable[Direction], passed: Collection[str]
) -> Iterator[tuple[Direction, Array]]:
    """The same of each mistake without a number: with f the function that the mistake puts in the step's place.

    Of those alone that are nearer to the candidate's array than the right step is: the orders of a step are many.
    """
    if not tightest.arithmetic.is_mixed or not set(passed) <= {WIDEST}:
        return
    block, segment = observation.whole, observation.whole.segment
    if not segment.is_single_step:
        return
    for mistake in mistakes:
        if mistake.parameter is None and mistake.usual is not None:
            faulty = mistake.usual
            left, right = (np.where(block.judged, x, 0.0) for x in (block.actual - faulty.value, block.residual))
            if np.vdot(left, left) >= np.vdot(right, right):
                continue
            for value in by_operations(faulty.steps[segment.name], tightest.arithmetic, block.actual):
                yield mistake, faulty.value + (block.actual - value)
