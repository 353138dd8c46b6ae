"""A pass of a judgement: a call of the candidate's runner with the corresponding network of the oracle.

`forward_passes` are one for each batch of a golden.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.candidates.arrays import Stream, pairs
from conformance.candidates.registry import Runner
from conformance.checks.candidate_device import inputs_device
from conformance.checks.check import Request
from conformance.checks.contract import prepared, require_support
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.termination import call_candidate


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


Passes = Callable[[Request], Sequence[Pass]]
"""Function of a request that returns the passes to run; raises what `opened` raises."""


def opened(request: Request) -> Runner:
    """Return the candidate's runner for a golden's checkpoint.

    Raises:
        Unsupported: if the candidate does not support the case.
        CandidateFailure: if the candidate cannot be prepared.
    """
    case, golden = request.case, request.golden
    require_support(request.candidate, golden, case.device, case.dtype)
    return prepared(request.candidate, golden.checkpoint, case.device, case.dtype)


def forward_passes(request: Request) -> Sequence[Pass]:
    """Return one forward pass per batch; raise what `opened` raises."""
    return forward_passes_of(opened(request), request, inputs_device(request.candidate, request.case.device))


def forward_passes_of(runner: Runner, request: Request, device: str) -> Sequence[Pass]:
    """Return one forward pass per batch of a prepared runner, with the inputs on `device`."""
    checkpoint, dtype = request.golden.checkpoint, request.case.dtype
    of = partial(_pass, runner, checkpoint.architecture, rounded_weights(checkpoint, dtype), dtype, device)
    return [of(name, batch) for name, batch in request.golden.batches.items()]


def _pass(
    runner: Runner, architecture: Architecture, weights: Mapping[str, Array], dtype: str, device: str, name: str, batch: Batch
) -> Pass:
    """Return the forward pass on a batch; a nested function that names itself would be a cycle that keeps the weights in memory."""
    network = Network(architecture, weights, batch.held_in(dtype))
    again = partial(_pass, runner, architecture, weights, dtype, device, "")
    return Pass(name, name, network, partial(_called, runner, batch, device), again)


def _called(runner: Runner, batch: Batch, device: str) -> Any:
    return call_candidate(lambda: runner(batch.on(device)))


def viewed(passes: Sequence[Pass], view: Callable[[Network, Stream], Stream]) -> Sequence[Pass]:
    """Return the passes, whose activations first go through `view`, a function that filters or inspects them."""
    return [_viewed(one, view) for one in passes]


def _viewed(one: Pass, view: Callable[[Network, Stream], Stream]) -> Pass:
    again = one.on_batch
    return replace(
        one,
        call=lambda: view(one.network, pairs(one.call(), table(one.network.architecture))),
        on_batch=again and (lambda batch: _viewed(again(batch), view)),
    )
