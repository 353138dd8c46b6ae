"""Forward passes: one for each batch of a golden."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from conformance.candidates.registry import Implementation, Runner
from conformance.checks.candidate_device import inputs_device
from conformance.checks.passes import Pass, opened
from conformance.goldens.golden import Golden
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.results.case import Case
from conformance.results.termination import call_candidate


def forward_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """Return one forward pass per batch; raise what `opened` raises."""
    return forward_passes_of(opened(candidate, golden, case), golden, case, inputs_device(candidate, case.device))


def forward_passes_of(runner: Runner, golden: Golden, case: Case, device: str) -> Sequence[Pass]:
    """Return one forward pass per batch of a prepared runner, with the inputs on `device`."""
    of = partial(_pass, runner, golden.checkpoint.architecture, rounded_weights(golden.checkpoint, case.dtype), case.dtype, device)
    return [of(name, batch) for name, batch in golden.batches.items()]


def _pass(
    runner: Runner, architecture: Architecture, weights: Mapping[str, Array], dtype: str, device: str, name: str, batch: Batch
) -> Pass:
    """Return the forward pass on a batch; a nested function that names itself would be a cycle that keeps the weights in memory."""
    network = Network(architecture, weights, batch.held_in(dtype))
    again = partial(_pass, runner, architecture, weights, dtype, device, "")
    return Pass(name, name, network, partial(_called, runner, batch, device), again)


def _called(runner: Runner, batch: Batch, device: str) -> Any:
    return call_candidate(lambda: runner(batch.on(device)))
