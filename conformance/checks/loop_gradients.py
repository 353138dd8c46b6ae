"""The gradients of a training loop's loss at the parameters after the previous step."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from conformance.candidates.arrays import held_in
from conformance.checks.passes import Pass
from conformance.checks.training_passes import HeldStream, values_of
from conformance.judge.judge import Judge
from conformance.model.activations import parameter_shapes
from conformance.model.gradients import SUFFIX, grad, is_gradient
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
_NO_GRADIENT = (
    "{names} no gradient, though {loss} depends on {them}: {it} {is_} not trained; `frozen` of a TorchImplementation declares what "
    "is not meant to be"
)
_OTHER = "not the gradient of {loss} at the parameters before the step; `gradients` and `training-mode` judge the network's own"


def gradient_passes(label: str, run: TrainingRun, stream: HeldStream, case: Case) -> Iterator[Pass]:
    """Yield a pass that judges the gradients of step `STEP` from the parameters before that step.

    Yield nothing if no head's bias is trained, or if one of these parameters is missing or not finite, which is a failure of its
    own.
    """
    loss = trained_loss(run)
    arrays, shapes = dict(stream), parameter_shapes(run.architecture)
    names = (*run.gradients[0], *run.untrained)
    read = {name: values_of(arrays.get(at(STEP - 1, name)), shapes[name]) for name in names}
    before = {name: x for name, x in read.items() if x is not None and np.isfinite(x).all()}
    if not loss or not run.gradients[0].keys() <= before.keys():
        return
    network = Network(run.architecture, {**run.weights, **before}, run.batch, source=loss)
    found = [(grad(name), arrays[at(STEP, grad(name))]) for name in run.gradients[0]]
    found += [(grad(name), held_in(case.dtype, np.zeros(shapes[name]))) for name in missing_gradients(run, network)]
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


def missing_gradients(run: TrainingRun, network: Network) -> list[str]:
    """Return the names of the parameters that the candidate yields without a gradient and that the backward pass reaches."""
    return [name for name in run.untrained if grad(name) in network.table]


def _failure(run: TrainingRun, network: Network, case: Case) -> str:
    """Return a sentence that says how the gradients differ from the expected ones."""
    earlier, found = run.gradients[STEP - 2 : STEP]
    expected = {name: x for name, x in network.walk() if is_gradient(name)}
    missing = {name: np.zeros_like(expected[grad(name)]) for name in missing_gradients(run, network)}
    if wrong := _wrong(missing, network, case):
        return _untrained(wrong, network)
    left = _slope({name: x - expected[grad(name)] for name, x in found.items()}, earlier)  # the earlier gradient may be clipped
    if not _wrong({name: x - left * earlier[name] for name, x in found.items()}, network, case):
        return "the gradient of the step before is added to it: zero_grad() is missing"
    scale = _slope(found, {name: expected[grad(name)] for name in found})
    if scale and not _wrong({name: x / scale for name, x in found.items()}, network, case):
        return f"the gradient is {scale:.4g} times that of {network.source}: the loss, or the gradient, is scaled"
    return _OTHER.format(loss=network.source)


def _slope(found: Mapping[str, Array], of: Mapping[str, Array]) -> float:
    """Return the least-squares factor between two sets of gradients: found ≈ factor · of."""
    norm = sum(float(np.vdot(of[name], of[name])) for name in found)
    return sum(float(np.vdot(x, of[name])) for name, x in found.items()) / norm if norm else 0.0


def _wrong(gradients: Mapping[str, Array], network: Network, case: Case) -> list[str]:
    """Return the names of the gradients that differ from the expected ones by more than rounding in the case's format."""
    judge = Judge(network, case.dtype, case.device, functions=this_machine(case.device).error_bounds, depth="screen")
    stream = ((grad(name), held_in(case.dtype, x)) for name, x in gradients.items())
    return [verdict.activation for verdict, _ in judge.judge(stream) if verdict.outcome == "fail"]


def _untrained(gradients: Sequence[str], network: Network) -> str:
    """Return a sentence on parameters without a gradient, given the names of their gradients."""
    first, several = gradients[0].removesuffix(SUFFIX), len(gradients) > 1
    names = f"{first} and {len(gradients) - 1} more have" if several else f"{first} has"
    it, them, is_ = ("they", "them", "are") if several else ("it", "it", "is")
    return _NO_GRADIENT.format(names=names, loss=network.source, it=it, them=them, is_=is_)
