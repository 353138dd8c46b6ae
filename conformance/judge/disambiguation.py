"""Disambiguation of several explanations of a failure: another batch is generated, run by the candidate, and judged.

From a few generated batches, the one is selected on which the oracle's results under the explanations' faults are farthest apart,
in standard deviations of a correct candidate's noise. No batch separates faults that are the same function of every input.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from conformance.errors import CandidateFailure, NotApplicable
from conformance.faults import BY_NAME
from conformance.goldens.batches import SEED, batch, drawn
from conformance.judge.evidence import Explanation, LocalJudgement, Verdict
from conformance.judge.fault_directions import direction
from conformance.judge.filters import project
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import hypotheses, representative_hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.oracle import Network


def discriminating(
    network: Network, name: str, explanations: Sequence[Explanation], dtype: str, batches: Iterable[Batch]
) -> Batch | None:
    """Return the batch that best separates the first explanation of activation `name` from the others.

    It is the batch with the largest expected z; None if no batch reaches z = 12.
    """
    best, found = 0.0, None
    for tried in batches:
        z = _distance(Network(network.architecture, network.weights, tried), name, explanations, dtype)
        if z > best:
            best, found = z, tried
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


_MASKS = (
    ("1111111111111111", "1111111111000000", "0000011111111111", "1101101011101101"),
    ("1111111111111111", "1111111111111111", "0111111111111111", "0001111111111000"),
    ("1111100000000000", "1111111111111110", "1011111111111111", "0000000011111111"),
)
LENGTH = len(_MASKS[0][0])  # tokens of a row of a further batch
_DRAWS = 2  # draws of ids and token types for each padding pattern
AT_MOST = 4  # batches tried per run; each is one more call of the candidate

Again = Callable[[Batch], Sequence[Verdict]]


def disambiguated(verdicts: Sequence[Verdict], network: Network, dtype: str, again: Again) -> list[Verdict]:
    """Return the verdicts without the explanations that another batch refutes; `again` judges the candidate on a batch."""
    rendered = list(verdicts)
    for names in list(dict.fromkeys(names for v in rendered if (names := _names(v))))[:AT_MOST]:
        first = next(v for v in rendered if _names(v) == names)
        assert first.local is not None
        found = discriminating(network, first.activation, _open(first.local), dtype, _batches(network.architecture))
        if found is not None:
            rendered = _narrowed(rendered, names, again, found)
    return rendered


def _batches(architecture: Architecture) -> Iterator[Batch]:
    length = min(LENGTH, architecture.longest)
    for seed in range(SEED, SEED + _DRAWS):
        for masks in _MASKS:
            yield batch(seed, architecture, drawn([m[:length] for m in masks if "1" in m[:length]]), name="disambiguation/")


def _open(local: LocalJudgement) -> tuple[Explanation, ...]:
    """Return the best explanation and those that cannot be distinguished from it."""
    return (local.explanations[0], *local.alternatives)


def _names(verdict: Verdict) -> tuple[tuple[str, ...], ...]:
    """Return the names of the faults of each explanation; empty unless there are several explanations."""
    if verdict.outcome != "fail" or verdict.local is None or not verdict.local.alternatives:
        return ()
    return tuple(tuple(f.name for f in e.faults) for e in _open(verdict.local))


def _narrowed(verdicts: Sequence[Verdict], names: tuple[tuple[str, ...], ...], again: Again, found: Batch) -> list[Verdict]:
    """Return the verdicts; each ambiguous one keeps only the explanations that the other batch allows as well."""
    try:
        other = {v.activation: v for v in again(found) if v.local is not None and v.local.explanations}
    except (CandidateFailure, NotApplicable):
        return list(verdicts)  # a failure on, or absence of, the other batch is no evidence for any explanation
    return [_allowed(v, other[v.activation]) if _names(v) == names and v.activation in other else v for v in verdicts]


def _allowed(verdict: Verdict, other: Verdict) -> Verdict:
    assert verdict.local is not None
    assert other.local is not None
    allowed = {tuple(f.name for f in e.faults) for e in _open(other.local)}
    kept = tuple(e for e in verdict.local.explanations if tuple(f.name for f in e.faults) in allowed)
    return replace(verdict, local=replace(verdict.local, explanations=kept)) if kept else verdict
