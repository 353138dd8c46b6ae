"""Steps written by hand: the known rounding effect of one order of operations is subtracted from the candidate's result."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from conformance.judge.evidence import BY_OPERATIONS, WIDEST_ARITHMETIC, LocalJudgement
from conformance.judge.fault_directions import Direction
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle.linear import Linear
from conformance.oracle.operations import by_operations
from conformance.oracle.softmax import Probabilities


def passing_by_hand(
    observation: Observation, tightest: Hypothesis, passed: Collection[str], judge: Callable[[Array], LocalJudgement]
) -> LocalJudgement | None:
    """Return the judgement under the first order of operations with which the activation passes; None if there is none.

    Args:
        observation: the activation.
        tightest: the hypothesis with the tightest arithmetic.
        passed: names of the arithmetics under which the activation passes.
        judge: function from an array of `by_hand` to its judgement under the tightest arithmetic.
    """
    judged = map(judge, by_hand(observation, tightest, passed))
    local = next((local for local in judged if local.passes), None)
    return None if local is None else replace(local, hypothesis=BY_OPERATIONS, arithmetic=BY_OPERATIONS)


def by_hand(observation: Observation, tightest: Hypothesis, passed: Collection[str]) -> Iterator[Array]:
    """Yield actual − f̃(x) + f(x) for each order of operations f̃, with x the captured parents.

    Each array is to be judged under the tightest arithmetic. Nothing is yielded if results are stored in the format in which
    they are accumulated, if any arithmetic other than the widest passes, or if a parent of the step is not exposed.

    Args:
        observation: the activation.
        tightest: the hypothesis with the tightest arithmetic.
        passed: names of the arithmetics under which the activation passes.
    """
    if not tightest.arithmetic.is_mixed or not set(passed) <= {WIDEST_ARITHMETIC}:
        return
    block, segment = observation.whole, observation.whole.segment
    if segment.is_single_step:
        for value in by_operations(segment.steps[segment.name], tightest.arithmetic, block.actual):
            yield segment.value + (block.actual - value)


def mistaken_by_hand(
    observation: Observation, tightest: Hypothesis, mistakes: Iterable[Direction], passed: Collection[str]
) -> Iterator[tuple[Direction, Array]]:
    """Yield (mistake, array) as `by_hand` does, with f the function that the mistake puts in place of the step's own.

    Only mistakes without a parameter are tried, and, since each step has many orders of operations, only those whose faulty step
    is closer to the candidate's array than the correct step is. Mistakes of a softmax or a linear layer are not tried: several of
    them are the same function, of which the search for explanations selects one.
    """
    if not tightest.arithmetic.is_mixed or not set(passed) <= {WIDEST_ARITHMETIC}:
        return
    block, segment = observation.whole, observation.whole.segment
    if not segment.is_single_step or isinstance(segment.steps[segment.name], Probabilities | Linear):
        return
    for mistake in mistakes:
        if mistake.parameter is None and (faulty := mistake.faulty) is not None:
            left, right = (np.where(block.judged, x, 0.0) for x in (block.actual - faulty.value, block.residual))
            if np.vdot(left, left) >= np.vdot(right, right):
                continue
            for value in by_operations(faulty.steps[segment.name], tightest.arithmetic, block.actual):
                yield mistake, faulty.value + (block.actual - value)
