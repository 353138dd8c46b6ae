"""What a judgement asks of a prepared candidate: passes, each a call of its runner and a network of the oracle's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from conformance.candidates.registry import Runner
from conformance.goldens.golden import Golden
from conformance.model.batch import Batch
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.termination import call_candidate


@dataclass(frozen=True)
class Pass:
    """One call.

    Attributes:
        label: what verdicts call it.
        batch: the golden's name of its batch.
        network: the oracle's.
        call: the candidate's answer; raises `CandidateFailure`.
    """

    label: str
    batch: str
    network: Network
    call: Callable[[], Any]


Passes = Callable[[Runner, Golden, Mapping[str, Array], Case], Sequence[Pass]]
"""From a runner, a golden, the weights as the candidate holds them and a case to what is to be asked."""


def forward_passes(runner: Runner, golden: Golden, weights: Mapping[str, Array], case: Case) -> Sequence[Pass]:
    """A forward pass of every batch."""
    architecture = golden.checkpoint.architecture
    return [
        Pass(name, name, Network(architecture, weights, batch), partial(_called, runner, batch, case.device))
        for name, batch in golden.batches.items()
    ]


def _called(runner: Runner, batch: Batch, device: str) -> Any:
    return call_candidate(lambda: runner(batch.on(device)))
