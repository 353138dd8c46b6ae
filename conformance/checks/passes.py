"""A pass of a judgement: a call of the candidate's runner with the corresponding network of the oracle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.candidates.registry import Implementation, Runner
from conformance.checks.contract import prepared, require_support
from conformance.goldens.golden import Golden
from conformance.model.batch import Batch
from conformance.oracle import Network
from conformance.results.case import Case


@dataclass(frozen=True)
class Pass:
    """One call of a runner and the network by which its result is judged.

    Attributes:
        label: the name of the pass in verdicts.
        batch: the name of its batch in the golden; empty if the golden's stored activations do not apply to the pass.
        network: the oracle's network on the batch.
        call: returns the candidate's answer; raises `CandidateFailure`.
        on_batch: returns the same pass on another batch; None if the pass must not be repeated on other batches.
        reasons_by_activation: function of a false-alarm probability that returns, by activation, a sentence on what is wrong apart
            from its values.
        describe_failure: returns a sentence that describes the failure if values fail.
        only_parameter_gradients: whether the call yields only gradients of parameters, each judged from the token ids; then no
            output is required, and faults in unexposed steps are not searched for.
    """

    label: str
    batch: str
    network: Network
    call: Callable[[], Any]
    on_batch: "Callable[[Batch], Pass] | None" = None
    reasons_by_activation: Callable[[float], Mapping[str, str]] = lambda alpha: {}
    describe_failure: "Callable[[], str] | None" = None
    only_parameter_gradients: bool = False


Passes = Callable[[Implementation, Golden, Case], Sequence[Pass]]
"""Function of a candidate, a golden and a case that returns the passes to run; raises what `opened` raises."""


def opened(candidate: Implementation, golden: Golden, case: Case) -> Runner:
    """Return the candidate's runner for a golden's checkpoint.

    Raises:
        Unsupported: if the candidate does not support the case.
        CandidateFailure: if the candidate cannot be prepared.
    """
    require_support(candidate, golden, case.device, case.dtype)
    return prepared(candidate, golden.checkpoint, case.device, case.dtype)
