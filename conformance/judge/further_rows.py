"""Naming of wrong weights where the batch has too few rows: a further batch is generated, run by the candidate, and judged there.

A linear layer's result with no more rows than the layer has inputs is that of some weights, whatever computes it. No weights are
named from it. On a further batch, which has more rows, the weights are fitted to a part of the equations, and the others test them.
Other explanations do not need more rows and are not looked for.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from conformance.errors import CandidateFailure, NotApplicable
from conformance.faults.fault import LINEARS
from conformance.faults.fitted import OF_RESULT, OTHER_WEIGHTS
from conformance.goldens.batches import SEED, batch
from conformance.judge.block_totals import block_totals
from conformance.judge.disambiguation import LENGTH
from conformance.judge.evidence import LocalJudgement, Verdict
from conformance.judge.explanation_search import fitted_explanations
from conformance.judge.failing_activation import Judged
from conformance.judge.judged_array import LocalTest, without_faults
from conformance.judge.observation import Observation
from conformance.model.activation import HIDDEN
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Hypothesis, as_captured
from conformance.oracle import Network

FURTHER = "the name is found on a further batch"  # the beginning of a sentence
# Rows for each unknown of an output, its weights and bias. It limits the work and is no threshold: with q rows for each, a result
# that is no product of the inputs keeps the share 1 − 1/q of its squares under the fit, here a fifth, whatever the machine.
_OVERDETERMINED = 1.25

Again = Callable[[Batch, Collection[str]], Sequence[Verdict]]


def named_on_further_rows(verdicts: Sequence[Verdict], networks: Mapping[str, Network], again: Again) -> list[Verdict]:
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
    try:
        judged = again(further, {v.activation for v in undetermined})
    except (CandidateFailure, NotApplicable):
        return list(verdicts)  # a failure on, or absence of, the further batch is no evidence for any explanation
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
    (totals,) = block_totals(observation, test.gross, [widest])
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
