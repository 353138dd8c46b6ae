"""Backward passes from each loss that a candidate computes or, if it computes none, from its logits or last hidden state."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.candidates.arrays import pairs
from conformance.candidates.registry import Runner
from conformance.checks.check import Request
from conformance.checks.contract import ability
from conformance.checks.judgement import Judgement
from conformance.checks.passes import Pass, forward_passes_of, opened
from conformance.errors import CandidateError, NotApplicable
from conformance.model.activations import outputs, parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch, TorchBatch
from conformance.model.gradients import SUFFIX, ends, grad, is_gradient, sources, with_gradients
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.termination import call_candidate

_PADDING_ID = 0  # the id of [PAD] in BERT's vocabularies, hence the usual padding_idx


@Judgement.of(
    "gradients",
    proves="the gradient of every loss with respect to each activation and parameter is that of a correct backward pass",
    catches="a detached statistic; a parameter that receives no gradient; padding that receives one",
    remedy="Take the first origin: the step of that gradient computes it incorrectly from the gradients that arrive there.",
)
def gradients(request: Request) -> Sequence[Pass]:
    """Backward passes start at each loss that a candidate computes or, without one, at its logits or last hidden state.

    Forward and backward passes run in evaluation mode. Each gradient is judged like an activation, from the candidate's own
    activations and the gradients that precede it in the backward pass: an error in the backward pass is an origin at the step where
    it occurs and at no other step. Where a forward step is wrong, gradients through it that differ from a BERT's are not judged.
    The gradient of a parameter is the sum over all its uses. A candidate names the parameters that it does not train in `frozen`.
    Batches that attend to token 0 are omitted: the gradient at its embedding is zero with padding_idx and nonzero without.
    """
    return backward_passes_of(opened(request), request)


def backward_passes_of(runner: Runner, request: Request) -> Sequence[Pass]:
    """Return one pass of a prepared runner for each batch and source, the output where the backward pass starts.

    Raises:
        NotApplicable: if the runner has no backward pass, or every batch attends to token 0.
        CandidateError: if the candidate exposes no output.
        CandidateCrash: if the forward pass raises.
    """
    ability(runner, "gradients")
    forward = forward_passes_of(runner, request, request.case.device)
    forward = [one for one in forward if not _attends_to_padding(one.network.batch)]
    if not forward:
        name = request.golden.name
        raise NotApplicable(f"every batch of {name} attends to the token {_PADDING_ID}, whose gradient padding_idx removes")
    return [backward for one in forward for backward in _from_every_source(runner, one, request.case)]


def _attends_to_padding(batch: Batch) -> bool:
    return bool((batch.mask & (batch.input_ids == _PADDING_ID)).any())


def _from_every_source(runner: Runner, forward: Pass, case: Case) -> Iterator[Pass]:
    """Yield a backward pass from each exposed loss or output from which no other exposed loss or output is computed."""
    output, order = forward.call(), forward.network.table
    exposed = call_candidate(lambda: {name for name, _ in pairs(output, ()) if isinstance(name, str)})
    found = sources(order, ends(forward.network.architecture) & exposed & order.keys())
    if not found:
        raise CandidateError(f"no output is exposed: at least one of {', '.join(outputs(forward.network.architecture))} is")
    for source in found:
        network = replace(forward.network, source=source)
        yield Pass(f"{forward.label}, {source}", forward.batch, network, partial(_called, runner, network, case))


def _called(runner: Runner, network: Network, case: Case) -> Iterator[tuple[str, Any]]:
    assert network.source is not None
    batch, gradient = network.batch.on(case.device), network.step(grad(network.source)).value
    answer = backward_pass(runner, batch, network.architecture, case.dtype, network.source, gradient)
    return (pair for pair in answer if not _is_undefined(pair[0], network))


def backward_pass(
    runner: Runner, batch: TorchBatch, architecture: Architecture, dtype: str, source: str, gradient: Array
) -> Iterator[tuple[str, Any]]:
    """Return the (name, value) pairs that a runner yields for one forward and backward pass.

    `gradient` is the gradient with respect to `source`, the loss or output at which the backward pass starts.

    Raises:
        NotApplicable: if the runner has no backward pass.
        CandidateFailure: if the candidate fails as it may in a forward pass.
    """
    import torch

    run = ability(runner, "gradients")
    names = with_gradients(table(architecture), source, parameter_shapes(architecture))
    upstream = torch.from_numpy(gradient).to(batch.input_ids.device, getattr(torch, dtype))
    return call_candidate(lambda: pairs(run(batch, source, upstream), names))


def _is_undefined(name: Any, network: Network) -> bool:
    """Return whether a name is the gradient of an existing activation or parameter that this pass lacks or has as internal."""
    if not isinstance(name, str) or not is_gradient(name):
        return False
    of = name.removesuffix(SUFFIX)
    exists = of in table(network.architecture) or of in parameter_shapes(network.architecture)
    return exists and (name not in network.table or network.table[name].is_internal)
