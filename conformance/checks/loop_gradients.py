"""The gradients of a training loop's loss at the parameters after the previous step."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from conformance.candidates.arrays import held_in
from conformance.checks.passes import Pass
from conformance.checks.training_passes import HeldStream, values_of
from conformance.judge.judge import Judge
from conformance.model.activations import parameter_shapes
from conformance.model.gradients import grad, is_gradient
from conformance.model.training import at
from conformance.numerics.formats import Array
from conformance.numerics.machine import this_machine
from conformance.oracle import Network
from conformance.oracle.training_run import TrainingRun
from conformance.results.case import Case

# The step whose gradients are judged: the first one after a change of the parameters, since the first learning rate is 0.
STEP = 3

# A parameter that has a gradient if the loss of its head is trained, and that loss.
_HEADS = {
    "cls.predictions.bias": "cls.predictions.loss",
    "cls.seq_relationship.bias": "cls.seq_relationship.loss",
    "classifier.bias": "classifier.loss",
    "qa_outputs.bias": "qa_outputs.loss",
}
_OTHER = "not the gradient of {loss} at the parameters before the step; `gradients` and `training-mode` judge the network's own"


def gradient_passes(label: str, run: TrainingRun, stream: HeldStream, case: Case) -> Iterator[Pass]:
    """Yield a pass that judges the gradients of step `STEP` from the parameters before that step.

    Yield nothing if no head's bias is trained, or if one of these parameters is missing or not finite, which is a failure of its
    own.
    """
    loss = trained_loss(run)
    arrays, shapes = dict(stream), parameter_shapes(run.architecture)
    read = {name: values_of(arrays.get(at(STEP - 1, name)), shapes[name]) for name in run.gradients[0]}
    before = {name: x for name, x in read.items() if x is not None and np.isfinite(x).all()}
    if not loss or len(before) < len(read):
        return
    network = Network(run.architecture, {**run.weights, **before}, run.batch, source=loss)
    found = [(grad(name), arrays[at(STEP, grad(name))]) for name in run.gradients[0]]
    failure = partial(_failure, run, network, case)
    yield Pass(
        f"{label}, gradients of step {STEP}",
        "",
        network,
        partial(iter, found),
        describe_failure=failure,
        only_parameter_gradients=True,
    )


def trained_loss(run: TrainingRun) -> str:
    """Return the sum of the losses of the heads whose bias has a gradient, as text; empty if no head's bias has one."""
    return " + ".join(loss for bias, loss in _HEADS.items() if bias in run.gradients[0])


def _failure(run: TrainingRun, network: Network, case: Case) -> str:
    """Return a sentence that says how the gradients differ from the expected ones."""
    earlier, found = run.gradients[STEP - 2 : STEP]
    expected = {name: x for name, x in network.walk() if is_gradient(name)}
    left = _slope({name: x - expected[grad(name)] for name, x in found.items()}, earlier)  # the earlier gradient may be clipped
    if _are_right({name: x - left * earlier[name] for name, x in found.items()}, network, case):
        return "the gradient of the step before is added to it: zero_grad() is missing"
    scale = _slope(found, {name: expected[grad(name)] for name in found})
    if scale and _are_right({name: x / scale for name, x in found.items()}, network, case):
        return f"the gradient is {scale:.4g} times that of {network.source}: the loss, or the gradient, is scaled"
    return _OTHER.format(loss=network.source)


def _slope(found: Mapping[str, Array], of: Mapping[str, Array]) -> float:
    """Return the least-squares factor between two sets of gradients: found ≈ factor · of."""
    norm = sum(float(np.vdot(of[name], of[name])) for name in found)
    return sum(float(np.vdot(x, of[name])) for name, x in found.items()) / norm if norm else 0.0


def _are_right(gradients: Mapping[str, Array], network: Network, case: Case) -> bool:
    """Return whether the gradients agree with the expected ones to within rounding in the case's format."""
    judge = Judge(network, case.dtype, case.device, functions=this_machine(case.device).error_bounds, depth="screen")
    stream = ((grad(name), held_in(case.dtype, x)) for name, x in gradients.items())
    return all(verdict.outcome != "fail" for verdict, _ in judge.judge(stream))
