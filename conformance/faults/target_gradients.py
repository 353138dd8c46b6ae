"""Faults of the gradients of losses with numeric targets: regression and multi-label classification."""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.changes import with_result
from conformance.faults.fault import Change, Fault, FaultContext, Parameter
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.gradients.target_losses import TargetLossBackward
from conformance.oracle.target_losses import sigmoid

REGRESSION, MULTI_LABEL = frozenset({"regression_loss_backward"}), frozenset({"multi_label_loss_backward"})

_WITH_LOGITS = "Use binary_cross_entropy_with_logits, and differentiate what the forward pass computes."


def _slope(function: Callable[[Array, Array], Array]) -> Change:
    """Return the change that replaces ∂l/∂x by a function of logits and targets, (B, C) each."""
    return lambda step, _: _with_slope(step, function)


def _with_slope(step: Step, function: Callable[[Array, Array], Array]) -> Step | None:
    return with_result(step, TargetLossBackward, lambda step: step.scale * function(step.logits, step.targets))


def _times(factor: Callable[[int, int], float]) -> Change:
    """Return the change that multiplies the gradient by factor(rows, labels); it gives None if the factor is 1."""

    def change(step: Step, _: FaultContext) -> Step | None:
        by = factor(*step.parents[-1].shape)
        return None if by == 1.0 else Altered(step, lambda inner: by * inner.value)

    return change


def _as_classes(x: Array, t: Array) -> Array:
    """Return the gradient of the softmax cross entropy, averaged over rows, times C, since `_slope` divides by B C."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return as_array(x.shape[-1] * (t.sum(-1, keepdims=True) * e / e.sum(-1, keepdims=True) - t))


def _sigmoid_twice(x: Array, t: Array) -> Array:
    s = sigmoid(x)
    return (sigmoid(s) - t) * s * (1.0 - s)


def _squared(x: Array, t: Array) -> Array:
    s = sigmoid(x)
    return 2.0 * (s - t) * s * (1.0 - s)


def _weighted(step: Step, weight: float) -> Step | None:
    """Return the gradient of l = −p t log σ(x) − (1 − t) log σ(−x) with p = `weight`."""
    return _with_slope(step, lambda x, t: (1.0 + (weight - 1.0) * t) * sigmoid(x) - weight * t)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of the gradients of losses with numeric targets."""
    made, both = "constructed", REGRESSION | MULTI_LABEL
    yield Fault("targets-gradient-summed", both, "the gradient is that of the sum over rows and labels, not of the mean", made,
                _times(lambda rows, labels: float(rows * labels)), "reduction='sum'", equation="∂L/∂x · B C",
                fix="Pass reduction='mean'.")
    yield Fault("targets-gradient-summed-over-labels", MULTI_LABEL, "the gradient is that of a mean over rows alone: the labels of "
                "a row are summed", made, _times(lambda rows, labels: float(labels)), "a sum over labels, then a mean over rows",
                equation="∂L/∂x · C", fix="Divide by the number of rows times the number of labels.")
    yield Fault("targets-gradient-summed-over-rows", MULTI_LABEL, "the gradient is that of a mean over labels alone: the rows are "
                "summed", made, _times(lambda rows, labels: float(rows)), "gradients of rows that are accumulated but not divided",
                equation="∂L/∂x · B", fix="Divide by the number of rows times the number of labels.")
    yield Fault("regression-gradient-halved", REGRESSION, "the gradient of the square lacks its factor of two", made,
                _times(lambda rows, labels: 0.5), "a gradient written for (x − t)²/2", equation="∂x = (x − t) / N",
                fix="Differentiate the square: 2 (x − t) / N.")
    yield Fault("regression-gradient-absolute", REGRESSION, "the gradient is that of the absolute error, not of the square", made,
                _slope(lambda x, t: np.sign(x - t)), "l1_loss for mse_loss", equation="∂x = sign(x − t) / N", fix="Use mse_loss.")
    yield Fault("targets-gradient-without-target", both, "the target is not subtracted", made,
                lambda step, _: _with_slope(step, (lambda x, t: 2.0 * x) if step.site.activation.kind in REGRESSION
                                            else lambda x, t: sigmoid(x)),
                "a hand-written fused loss", equation="∂x = 2 x / N, or σ(x) / N", fix="Subtract the target.")
    yield Fault("multi-label-gradient-sigmoid-twice", MULTI_LABEL, "the gradient is that of a loss that takes the sigmoid twice",
                made, _slope(_sigmoid_twice), "binary_cross_entropy_with_logits of probabilities",
                equation="∂x = (σ(σ(x)) − t) σ(x) (1 − σ(x)) / N", fix=_WITH_LOGITS)
    yield Fault("multi-label-gradient-of-logits", MULTI_LABEL, "the logits are used in place of the probabilities", made,
                _slope(lambda x, t: x - t), "the sigmoid left out of a hand-written gradient",
                equation="∂x = (x − t) / N", fix=_WITH_LOGITS)
    yield Fault("multi-label-gradient-squared", MULTI_LABEL, "the gradient is that of the squared error of the probabilities", made,
                _slope(_squared), "mse_loss of sigmoid(x)", equation="∂x = 2 (σ(x) − t) σ(x) (1 − σ(x)) / N", fix=_WITH_LOGITS)
    yield Fault("multi-label-gradient-as-classes", MULTI_LABEL, "the gradient is that of mutually exclusive classes", made,
                _slope(_as_classes), "cross_entropy with numeric targets",
                equation="∂x = (softmax(x) Σ t − t) / B", fix=_WITH_LOGITS)
    yield Fault("multi-label-positives-weighted", MULTI_LABEL, "positive labels are weighted by {value}", made,
                cause="pos_weight", parameter=Parameter("weight of positives", lambda _: 1.0, lambda _: 2.0, _weighted,
                                                       quantity="weight of positive labels"),
                equation="∂x = ((1 + (p − 1) t) σ(x) − p t) / N", fix="Pass no pos_weight.")
# fmt: on
