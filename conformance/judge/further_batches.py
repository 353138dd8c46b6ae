"""What a further batch decides, which is generated, run by the candidate, and judged: a name of wrong weights, or one of several.

A linear layer's result with no more rows than the layer has inputs is that of some weights, whatever computes it. No weights are
named from it. On a further batch, which has more rows, the weights are fitted to a part of the equations, and the others test them.
Other explanations do not need more rows and are not looked for.

Of several explanations of a failure, a further batch refutes some: of a few, the one on which the oracle's results under the
explanations' faults are farthest apart, in standard deviations of a correct candidate's noise. No batch separates faults that are
the same function of every input. A failure on a further batch, or its absence, is no evidence for any explanation.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

import numpy as np

from conformance.errors import CandidateFailure, NotApplicable
from conformance.faults import BY_NAME
from conformance.faults.fault import LINEARS
from conformance.faults.fitted import OF_RESULT, OTHER_WEIGHTS
from conformance.goldens.batches import SEED, batch, drawn
from conformance.judge.evidence import Explanation, LocalJudgement, Verdict
from conformance.judge.explanation_search import fitted_explanations
from conformance.judge.failing_activation import Judged
from conformance.judge.fault_directions import direction
from conformance.judge.filters import project
from conformance.judge.judged_array import LocalTest, without_faults
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.model.activation import HIDDEN
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Hypothesis, as_captured, hypotheses, representative_hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.oracle import Network

FURTHER = "the name is found on a further batch"  # the beginning of a sentence
# Rows for each unknown of an output, its weights and bias. It limits the work and is no threshold: with q rows for each, a result
# that is no product of the inputs keeps the share 1 − 1/q of its squares under the fit, here a fifth, whatever the machine.
_OVERDETERMINED = 1.25

Again = Callable[[Batch], Sequence[Verdict]]  # judges the candidate on a batch
OfWeights = Callable[[Batch, Collection[str]], Sequence[Verdict]]  # judges the weights of some of its linear layers on a batch


def named_on_further_rows(verdicts: Sequence[Verdict], networks: Mapping[str, Network], again: OfWeights) -> list[Verdict]:
    """Return the verdicts, with the names that a further batch gives to wrong linear layers whose batch has too few rows.

    Args:
        verdicts: the verdicts.
        networks: the network of each batch, by the batch's name in verdicts.
        again: judges the weights of some of the candidate's linear layers on a batch (`judge_weights`).
    """
    undetermined = [v for v in verdicts if _is_undetermined(v, networks[v.batch])]
    if not undetermined:
        return list(verdicts)
    inputs = max(_inputs(v.activation, networks[v.batch]) for v in undetermined)
    further = _batch(networks[undetermined[0].batch].architecture, math.ceil(_OVERDETERMINED * (inputs + 1)))
    judged: Sequence[Verdict] = ()
    with suppress(CandidateFailure, NotApplicable):
        judged = again(further, {v.activation for v in undetermined})
    found = {v.activation: v.local.explanations for v in judged if v.local and v.local.named}
    where = f"{FURTHER}, of {' × '.join(map(str, further.input_ids.shape))} tokens: this one has fewer than the layer has inputs"

    def named(verdict: Verdict) -> Verdict:
        if verdict.activation not in found or not _is_undetermined(verdict, networks[verdict.batch]):
            return verdict
        assert verdict.local is not None
        local = replace(verdict.local, explanations=found[verdict.activation])
        return replace(verdict, local=local, residual_description=(where,))

    return [named(v) for v in verdicts]


def judge_weights(observation: Observation, hypotheses: Sequence[Hypothesis], alpha: float) -> LocalJudgement:
    """Return the judgement of a linear layer under the widest arithmetic, explained by other weights if it fails."""
    observation, widest = observation.in_memory, as_captured(hypotheses)[-1]
    test = LocalTest(observation, alpha, without_faults(observation), observation.independent_draw_count([widest]))
    (totals,) = test.gross.totals([widest])
    judged = Judged.of(test, widest, totals)
    if judged.local.passes:
        return judged.local
    return replace(judged.local, explanations=fitted_explanations(judged.problem, fits=OTHER_WEIGHTS))


def _is_undetermined(verdict: Verdict, network: Network) -> bool:
    """Return whether a linear layer's failure has no name, and too few rows for any weights to be determined."""
    local = verdict.local
    if verdict.outcome != "fail" or verdict.reason or verdict.kind not in LINEARS:
        return False
    if local is None or local.has_unexposed_steps or any(fault.name not in OF_RESULT for fault in local.named):
        return False
    row = network.table[verdict.activation]
    return row.axes[:2] == HIDDEN[:2] and int(network.batch.mask.sum()) <= _inputs(row.name, network)


def _inputs(activation: str, network: Network) -> int:
    """Return the number of inputs of a linear layer."""
    return int(network.site(activation).parameters["weight"].shape[1])


def _batch(architecture: Architecture, tokens: int) -> Batch:
    """Return a batch without padding of at least so many tokens."""
    length = min(LENGTH, architecture.longest)
    return batch(SEED, architecture, np.ones((math.ceil(tokens / length), length), np.int64), name="further rows/")


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
    other = dict[str, Verdict]()
    with suppress(CandidateFailure, NotApplicable):
        other = {v.activation: v for v in again(found) if v.local is not None and v.local.explanations}
    return [_allowed(v, other[v.activation]) if _names(v) == names and v.activation in other else v for v in verdicts]


def _allowed(verdict: Verdict, other: Verdict) -> Verdict:
    assert verdict.local is not None
    assert other.local is not None
    allowed = {tuple(f.name for f in e.faults) for e in _open(other.local)}
    kept = tuple(e for e in verdict.local.explanations if tuple(f.name for f in e.faults) in allowed)
    return replace(verdict, local=replace(verdict.local, explanations=kept)) if kept else verdict
