"""Selection of a batch on which explanations differ that cannot be distinguished on another batch.

From a few generated batches, the one is selected on which the oracle's results under the explanations' faults are farthest apart,
in standard deviations of a correct candidate's noise. No batch separates faults that are the same function of every input.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np

from conformance.faults import BY_NAME
from conformance.judge.evidence import Explanation
from conformance.judge.fault_directions import direction
from conformance.judge.filters import project
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import hypotheses, representative_hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.oracle import Network


def discriminating(
    network: Network, name: str, explanations: Sequence[Explanation], dtype: str, batches: Iterable[Batch]
) -> Batch | None:
    """Return the batch that best separates the first explanation of activation `name` from the others.

    Args:
        network: the oracle's network.
        name: the activation.
        explanations: the explanations to separate.
        dtype: the candidate's storage format.
        batches: the batches to choose from.

    Returns:
        The batch with the largest expected z, or None if no batch reaches z = 12.
    """
    best, found = 0.0, None
    for batch in batches:
        z = _distance(Network(network.architecture, network.weights, batch), name, explanations, dtype)
        if z > best:
            best, found = z, batch
    return found if best >= SEPARABLE_Z else None


def _distance(network: Network, name: str, explanations: Sequence[Explanation], dtype: str) -> float:
    """Return the largest expected z between the first explanation and another one."""
    segment = Segment(network, name, dict(takewhile(lambda pair: pair[0] != name, network.walk())))
    actual = [_with(segment, explanation, dtype) for explanation in explanations]
    first, *others = actual
    if first is None:
        return 0.0
    return max((_expected(first, other, network, segment, dtype) for other in others if other is not None), default=0.0)


def _with(segment: Segment, explanation: Explanation, dtype: str) -> Segment | None:
    """Return the segment with an explanation's faults, or None if a fault is not in the catalogue or acts on another segment."""
    storage = hypotheses(dtype)[0].arithmetic.storage
    for filtered in explanation.faults:
        if filtered.name not in BY_NAME or filtered.step not in segment.steps:
            return None
        at = direction(BY_NAME[filtered.name], filtered.step, segment, storage)
        segment = at.applied(filtered.estimate.value if filtered.estimate else None) or segment
    return segment


def _expected(a: Segment, b: Segment, network: Network, right: Segment, dtype: str) -> float:
    apart = a.value - b.value
    judged = elements_to_explain(network.table[right.name], network.batch, apart.shape)
    if network.table[right.name].exact:
        return math.inf if np.where(judged, apart, 0.0).any() else 0.0
    found = project(apart, apart, of_segment(right, representative_hypothesis(dtype), judged))
    return found.expected_z if found else 0.0
