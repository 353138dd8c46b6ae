"""A comparison of the loss of a training loop with the oracle's over a hundred steps, to within the effect of rounding.

All steps use one batch, without dropout. After each step the loss is computed in float64 at the candidate's current parameters and
compared with the loss of the oracle's own loop, which starts from the same parameters and computes its own gradients. An error in
any step therefore persists in all later ones. The distance that rounding causes between the two is sampled
(`conformance.judge.loss_curve`).

This is the accumulated judgement of a loop. The local ones are `optimizer-step` and `schedule`: they judge each step from the
candidate's own gradients, over fewer steps, and name the mistakes. Like these, it does not notice a loop that does not call
`model.train()`.
"""

import numpy as np

from conformance.checks.candidate_device import functions_of
from conformance.checks.check import CheckRequest
from conformance.checks.counted import Tried, counted
from conformance.checks.optimizer_passes import missing_gradients, runs_of, trained_loss
from conformance.checks.training_passes import HeldStream, values_of
from conformance.errors import CandidateError, NotApplicable
from conformance.goldens.manifest import DEFAULT_GOLDENS
from conformance.judge.cache import expected_losses
from conformance.judge.loss_curve import Expected, TrainedLoss, threshold
from conformance.model.activations import parameter_shapes
from conformance.model.training import FOLLOWED, at
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import sidak_share
from conformance.oracle import Network
from conformance.oracle.training_run import TrainingRun, VectorLayout
from conformance.results.result import Result

STEPS = 100


def loss_curve(request: CheckRequest) -> Result:
    """Train, compare the loss after each step and return the result; no exception is raised."""

    def wrong(tried: Tried) -> str:
        if request.golden.name not in DEFAULT_GOLDENS:
            raise NotApplicable(
                f"it is asked on {' and '.join(DEFAULT_GOLDENS)}: elsewhere the oracle's hundred steps take too long"
            )
        label, (run, stream) = next(runs_of(request.candidate, request.golden, request.case, FOLLOWED, STEPS))
        tried.count = STEPS
        return _compared(label, run, stream, request)

    return counted(request.case, wrong)


def _compared(label: str, run: TrainingRun, stream: HeldStream, request: CheckRequest) -> str:
    """Compare the losses step by step; return a sentence on the first that exceeds its limit, or an empty text."""
    case, source = request.case, trained_loss(run)
    if not source:
        raise NotApplicable("no bias of a head is trained, so that it is not known of which loss the gradients are")
    network, shapes = Network(run.architecture, run.weights, run.batch, source=source), parameter_shapes(run.architecture)
    layout = VectorLayout({name: shapes[name] for name in (*run.gradients[0], *missing_gradients(run, network))})
    loss = TrainedLoss(network, layout)
    parameters = _vectors(stream, layout)
    limit = threshold(sidak_share(STEPS * request.runs))
    functions, checkpoint = functions_of(request.candidate, case.device), request.golden.checkpoint
    oracle = expected_losses(loss, parameters[0], run.training, case.dtype, case.device, functions, checkpoint)
    for step, (right, vector) in enumerate(zip(oracle, parameters[1:], strict=True), 1):
        found = loss.value(vector) if np.isfinite(vector).all() else np.nan
        if not right.deviation(found) <= limit:
            return f"{label}: {_difference(step, source, found, right, limit)}"
    return ""


def _difference(step: int, source: str, found: float, right: Expected, limit: float) -> str:
    """Return a sentence that describes the deviation after a step."""
    if not np.isfinite(found):
        return f"after step {step} {source}, or a parameter, is not finite"
    return (
        f"after step {step} {source} is {found:.7g}, expected {right.loss:.7g}: the difference is "
        f"{right.deviation(found):.3g} times what rounding explains ({right.spread:.2g}), where at most {limit:.1f} times is right"
    )


def _vectors(stream: HeldStream, layout: VectorLayout) -> list[Array]:
    """Return the parameters before the first step and after each step; raise `CandidateError` if one is missing."""
    arrays, found = dict(stream), []
    for step in range(STEPS + 1):
        values = {name: values_of(arrays.get(at(step, name)), shape) for name, shape in layout.shapes.items()}
        missing = next((name for name, value in values.items() if value is None), None)
        if missing is not None:
            raise CandidateError(f"step {step} of training yields no {missing} of shape {layout.shapes[missing]}, and its gradient")
        found.append(layout.vector({name: value for name, value in values.items() if value is not None}))
    return found
