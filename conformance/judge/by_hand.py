"""A step that a candidate writes by hand: what it made, less what the roundings of its operations are known to do."""

from collections.abc import Collection, Iterator

from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle.operations import by_operations

WIDEST = "native"


def by_hand(observation: Observation, tightest: Hypothesis, passed: Collection[str]) -> Iterator[Array]:
    """For each order of operations f̃, actual − f̃(x) + f(x), x the captured parents: to be judged under the tightest arithmetic.

    None where an arithmetic but the widest has passed, or where the step is no single one.
    """
    block, segment = observation.whole, observation.whole.segment
    if segment.is_single_step and set(passed) <= {WIDEST}:
        for value in by_operations(segment.steps[segment.name], tightest.arithmetic, block.actual):
            yield segment.value + (block.actual - value)
