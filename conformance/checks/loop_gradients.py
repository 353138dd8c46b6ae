"""The gradients that a training loop works with: those of its loss, at the parameters that the step before left."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from conformance.candidates.arrays import held_in
from conformance.checks.passes import Pass
from conformance.checks.training import Stream, values_of
from conformance.judge.judge import Judge
from conformance.model.activations import parameter_shapes
from conformance.model.gradients import grad, is_gradient
from conformance.model.training import at
from conformance.numerics.formats import Array
from conformance.numerics.machine import this_machine
from conformance.oracle import Network
from conformance.oracle.training_run import TrainingRun
from conformance.results.case import Case

# The step whose gradients are judged: the first after one that has moved the parameters, since the first rate is 0.
STEP = 3

# A parameter that has a gradient where a head's loss is trained, and that loss.
_HEADS = {
    "cls.predictions.bias": "cls.predictions.loss",
    "cls.seq_relationship.bias": "cls.seq_relationship.loss",
    "classifier.bias": "classifier.loss",
    "qa_outputs.bias": "qa_outputs.loss",
}
_OTHER = "not the gradient of {loss} at the parameters before the step; `gradients` and `training-mode` judge the network's own"


def gradient_passes(label: str, run: TrainingRun, stream: Stream, case: Case) -> Iterator[Pass]:
    """The gradients of `STEP`, judged from the parameters before.

    Nothing where no head's bias is trained, or where these parameters are not there or not finite, which fails by itself.
    """
    loss = trained_loss(run)
    arrays, shapes = dict(stream), parameter_shapes(run.architecture)
    read = {name: values_of(arrays.get(at(STEP - 1, name)), shapes[name]) for name in run.gradients[0]}
    before = {name: x for name, x in read.items() if x is not None and np.isfinite(x).all()}
    if not loss or len(before) < len(read):
        return
    network = Network(run.architecture, {**run.weights, **before}, run.batch, source=loss)
    found = [(grad(name), arrays[at(STEP, grad(name))]) for name in run.gradients[0]]
    said = partial(_said, run, network, case)
    yield Pass(f"{label}, gradients of step {STEP}", "", network, partial(iter, found), said=said, is_of_gradients=True)


def trained_loss(run: TrainingRun) -> str:
    """The loss of a run: the sum of those of the heads whose bias has a gradient; empty where none has."""
    return " + ".join(loss for bias, loss in _HEADS.items() if bias in run.gradients[0])


def _said(run: TrainingRun, network: Network, case: Case) -> str:
    """What the gradients are, where they are not those that are expected."""
    earlier, found = run.gradients[STEP - 2 : STEP]
    expected = {name: x for name, x in network.walk() if is_gradient(name)}
    left = _slope({name: x - expected[grad(name)] for name, x in found.items()}, earlier)  # clipped or not
    if _are_right({name: x - left * earlier[name] for name, x in found.items()}, network, case):
        return "the gradient of the step before is added to it: zero_grad() is missing"
    scale = _slope(found, {name: expected[grad(name)] for name in found})
    if scale and _are_right({name: x / scale for name, x in found.items()}, network, case):
        return f"the gradient is {scale:.4g} times that of {network.source}: the loss, or the gradient, is scaled"
    return _OTHER.format(loss=network.source)


def _slope(found: Mapping[str, Array], of: Mapping[str, Array]) -> float:
    """How many times one set of gradients another is, by least squares."""
    norm = sum(float(np.vdot(of[name], of[name])) for name in found)
    return sum(float(np.vdot(x, of[name])) for name, x in found.items()) / norm if norm else 0.0


def _are_right(gradients: Mapping[str, Array], network: Network, case: Case) -> bool:
    """Whether these gradients are those that are expected, within rounding in the case's format."""
    judge = Judge(network, case.dtype, case.device, functions=this_machine(case.device).accuracy, depth="screen")
    stream = ((grad(name), held_in(case.dtype, x)) for name, x in gradients.items())
    return all(verdict.outcome != "fail" for verdict, _ in judge.judge(stream))
