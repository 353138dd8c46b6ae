"""Judgement of a trace's activations against the oracle, as in a run."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from conformance.checks.trace import Trace
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import Checkpoint, rounded_weights
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.records import ActivationRecord
from conformance.results.result import Result
from conformance.results.to_records import activation_records


def judged(trace: Trace, checkpoint: Checkpoint) -> list[ActivationRecord]:
    """Return a record for each activation and batch of a trace; `findings` derives the mistakes from them."""
    weights, verdicts = rounded_weights(checkpoint, trace.dtype), list[Verdict]()
    for batch in trace.batches:
        network = Network(checkpoint.architecture, weights, trace.batches[batch].held_in(trace.dtype))
        judge = Judge(network, trace.dtype, trace.device, len(trace.batches), recorded=True)
        label = batch if len(trace.batches) > 1 else ""
        verdicts += [replace(v, batch=label) for v in select_arithmetic(judge.judge(_of_candidate(trace, batch)))]
    case = Case(trace.name, trace.golden, trace.device, trace.dtype)
    return activation_records(Result(case, "pass", "", 0, True, True, 0.0, tuple(verdicts)))


def _of_candidate(trace: Trace, batch: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the activations of a batch, converted from the float64 of a trace to the candidate's format, which is exact."""
    for name, value in trace.activations[batch].items():
        yield name, torch.tensor(value).to(getattr(torch, trace.dtype))
