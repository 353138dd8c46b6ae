"""Backward passes: from each loss that a candidate computes, or from its logits or last hidden state where it computes none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.candidates.registry import Runner
from conformance.candidates.stream import pairs
from conformance.checks.passes import Pass, forward_passes
from conformance.errors import NotApplicable
from conformance.goldens.golden import Golden
from conformance.model.activations import parameter_shapes, table
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.gradients import SUFFIX, ends, grad, is_gradient, sources, with_gradients
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.termination import call_candidate

_PADDING_ID = 0  # of BERT's vocabularies, and so the usual padding_idx


def backward_passes(runner: Runner, golden: Golden, weights: Mapping[str, Array], case: Case) -> Sequence[Pass]:
    """A forward and a backward pass of every batch from every source.

    A batch that attends to the token 0 is left out: an embedding with padding_idx learns nothing from it, one without does.

    Raises:
        NotApplicable: the runner has no backward pass, or no batch is left.
    """
    require_backward(runner)
    found: list[Pass] = []
    for one in forward_passes(runner, golden, weights, case):
        batch = one.network.batch
        if not (batch.mask & (batch.input_ids == _PADDING_ID)).any():
            exposed = [name for name, _ in pairs(one.call(), {})]
            for source in _sources(one.network, exposed):
                network = replace(one.network, source=source)
                call = partial(_called, runner, network, case)
                found.append(Pass(f"{one.label}, {source}" if one.label else source, one.batch, network, call))
    if not found:
        raise NotApplicable(f"every batch of {golden.name} attends to the token {_PADDING_ID}, whose gradient padding_idx removes")
    return found


def require_backward(runner: Runner) -> Callable[..., Any]:
    """The runner's backward pass; `NotApplicable` where it has none."""
    found = call_candidate(lambda: getattr(runner, "gradients", None))
    if found is None:
        raise NotApplicable("its runner has no backward pass: no attribute `gradients`, as conformance.ModuleRunner has one")
    return found  # type: ignore[no-any-return]  # called under guard


def _sources(network: Network, exposed: Sequence[str]) -> Sequence[str]:
    """Of the losses and outputs that are exposed those from which no other is computed."""
    return sources(network.table, {name for name in ends(network.architecture) if name in network.table and name in exposed})


def _called(runner: Runner, network: Network, case: Case) -> Iterator[tuple[str, Any]]:
    assert network.source is not None
    batch, gradient = network.batch.on(case.device), network.step(grad(network.source)).value
    answer = backward_pass(runner, batch, network.architecture, case.dtype, network.source, gradient)
    return (pair for pair in answer if not _is_undefined(pair[0], network))


def backward_pass(
    runner: Runner, batch: TorchBatch, architecture: Architecture, dtype: str, source: str, gradient: Array
) -> Iterator[tuple[str, Any]]:
    """What a runner yields of a forward and a backward pass; `gradient` is that with respect to `source`.

    Raises:
        NotApplicable: it has no backward pass.
        CandidateFailure: as a forward pass.
    """
    import torch

    run = require_backward(runner)
    order = {name: i for i, name in enumerate(with_gradients(table(architecture), source, parameter_shapes(architecture)))}
    upstream = torch.from_numpy(gradient).to(batch.input_ids.device, getattr(torch, dtype))
    return call_candidate(lambda: pairs(run(batch, source, upstream), order))


def _is_undefined(name: Any, network: Network) -> bool:
    """Whether it is a gradient that this pass does not define, or defines in one form among others, of what does exist."""
    if not isinstance(name, str) or not is_gradient(name):
        return False
    of = name.removesuffix(SUFFIX)
    exists = of in table(network.architecture) or of in parameter_shapes(network.architecture)
    return exists and (name not in network.table or network.table[name].is_internal)
