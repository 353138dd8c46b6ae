"""Checks that judge all activations that a candidate exposes on a golden, or a part of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.candidates.arrays import Stream
from conformance.checks.backward_passes import backward_passes
from conformance.checks.candidate_device import StreamView, ViewedCandidate, functions_of
from conformance.checks.check import CheckRequest
from conformance.checks.check_values import check_values
from conformance.checks.initial_passes import initial_passes
from conformance.checks.moments import watched
from conformance.checks.optimizer_passes import optimizer_passes, schedule_passes
from conformance.checks.passes import Passes, forward_passes
from conformance.checks.training_passes import training_passes
from conformance.model.activations import is_layer_output, last_hidden
from conformance.model.activations import outputs as outputs_of
from conformance.results.result import Result

View = Callable[[CheckRequest], Any]


@dataclass(frozen=True)
class ActivationCheck:
    """A check that judges a view of the candidate on a golden.

    Attributes:
        view: function of a request that returns the candidate, possibly with only a part of its activations.
        whole: whether the view contains all exposed activations; only then are the required activations enforced.
        passes: function that returns the passes to run.
    """

    view: View
    whole: bool = False
    passes: Passes = forward_passes

    def __call__(self, request: CheckRequest) -> Result:
        """Run the judgement and return its result."""
        candidate, require, depth = self.view(request), request.require if self.whole else (), request.plan.depth
        device, dtype, runs = request.case.device, request.case.dtype, request.runs
        result = check_values(candidate, request.golden, device, dtype, require=require, runs=runs, depth=depth, passes=self.passes)
        return replace(result, require=tuple(require))


def _showing(wanted: Callable[[str, Any], bool]) -> View:
    """Return a view that contains only the activations for which `wanted(name, architecture)` is true."""

    def only(checkpoint: Any, device: str, dtype: str) -> StreamView:
        return lambda batch, stream: _shown(stream, wanted, checkpoint.architecture)

    return lambda request: ViewedCandidate(request.candidate, only)


def _shown(stream: Stream, wanted: Callable[[str, Any], bool], architecture: Any) -> Stream:
    """Yield the wanted activations, and layer outputs that come after that of the last layer: layers are then out of order."""
    last, is_after_last = last_hidden(architecture), False
    for name, value in stream:
        if wanted(name, architecture) or (is_after_last and isinstance(name, str) and is_layer_output(name)):
            yield name, value
        is_after_last |= name == last


def _is_output(name: str, architecture: Any) -> bool:
    return name in outputs_of(architecture)


def _outputs_unmodified(request: CheckRequest) -> Any:
    """Return a view of the outputs only; a program that is modified to expose activations is run unmodified."""
    return _showing(_is_output)(replace(request, candidate=getattr(request.candidate, "unobserved", request.candidate)))


def _is_stage(name: str, architecture: Any) -> bool:
    """Return whether an activation is the result of the embeddings, the output of a layer, or an output of the network."""
    return name in ("embeddings.LayerNorm", "embeddings.sum") or is_layer_output(name) or _is_output(name, architecture)


def _with_its_moments(request: CheckRequest) -> Any:
    """Return a view of all exposed activations that checks means and variances as the activations pass."""
    calls = request.runs * len(request.golden.batches)
    return ViewedCandidate(request.candidate, partial(_watching_moments, request.candidate, calls=calls))


def _watching_moments(candidate: Any, checkpoint: Any, device: str, dtype: str, *, calls: int) -> StreamView:
    return watched(checkpoint, device, dtype, functions_of(candidate, device), calls=calls)


values = ActivationCheck(lambda request: request.candidate, whole=True)
outputs = ActivationCheck(_outputs_unmodified)
stages = ActivationCheck(_showing(_is_stage))
moments = ActivationCheck(_with_its_moments)
gradients = ActivationCheck(lambda request: request.candidate, passes=backward_passes)
training_mode = ActivationCheck(lambda request: request.candidate, passes=training_passes)
optimizer_step = ActivationCheck(lambda request: request.candidate, passes=optimizer_passes)
initialization = ActivationCheck(lambda request: request.candidate, passes=initial_passes)
schedule = ActivationCheck(lambda request: request.candidate, passes=schedule_passes)
