"""Faults of the values of losses with numeric targets: regression and multi-label classification."""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.changes import rewritten, rewritten_equation
from conformance.faults.fault import Change, Fault
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle.target_losses import TargetLoss, sigmoid

REGRESSION, MULTI_LABEL = frozenset({"regression_loss"}), frozenset({"multi_label_loss"})


def _loss(value: Callable[[Array, Array], Array | float]) -> Change:
    """Return the change that replaces the loss by a function of logits and targets, (B, C) each."""
    return rewritten_equation(TargetLoss, lambda step: as_array(value(step.logits, step.targets)))


def _softmax_cross_entropy(x: Array, t: Array) -> Array:
    return as_array((t * (np.logaddexp.reduce(x, -1, keepdims=True) - x)).sum(-1).mean())


def _broadcast(x: Array, t: Array) -> Array:
    """Return the squared error with logits (B, 1) and targets (B,) broadcast to (B, B); the plain one for several labels."""
    return as_array(np.square(x - t[:, 0]).mean()) if x.shape[-1] == 1 else as_array(np.square(x - t).mean())


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of losses with numeric targets."""
    made = "constructed"
    yield Fault("targets-broadcast", REGRESSION, "each row's logit is compared with the targets of all rows",
                "pytorch#16045", _loss(_broadcast), "logits (B, 1) and targets (B,) broadcast to (B, B), with a warning",
                equation="mean over i and j of (x_i − t_j)²", fix="Squeeze the logits: logits.squeeze(-1).")
    yield Fault("regression-loss-halved", REGRESSION, "the squared error is halved", made,
                _loss(lambda x, t: np.square(x - t).mean() / 2.0), "a loss written so that its gradient has no factor of two",
                equation="mean (x − t)²/2", fix="Take the mean of the squares, as mse_loss does.")
    yield Fault("regression-loss-absolute", REGRESSION, "the error is absolute, not squared", made,
                _loss(lambda x, t: np.abs(x - t).mean()), "l1_loss for mse_loss",
                equation="mean |x − t|", fix="Use mse_loss.")
    yield Fault("regression-as-classes", REGRESSION, "the loss is the cross entropy of a single class, which is 0",
                "transformers#7496", _loss(lambda x, t: 0.0), "cross_entropy regardless of num_labels",
                equation="0", fix="Use mse_loss where num_labels is 1.")
    yield Fault("multi-label-as-classes", MULTI_LABEL, "the labels are taken as mutually exclusive classes", made,
                _loss(_softmax_cross_entropy), "cross_entropy with numeric targets",
                equation="mean over rows of −Σ t log softmax(x)", fix="Use binary_cross_entropy_with_logits.")
    yield Fault("multi-label-sigmoid-twice", MULTI_LABEL, "the sigmoid is taken twice", made,
                _loss(lambda x, t: (np.logaddexp(0.0, sigmoid(x)) - t * sigmoid(x)).mean()),
                "binary_cross_entropy_with_logits of probabilities",
                equation="the loss of σ(x)", fix="Pass the logits.")
    yield Fault("targets-loss-summed-over-labels", MULTI_LABEL, "the loss is summed over the labels of a row, not averaged", made,
                rewritten(lambda step: step.value * step.parents[-1].shape[-1]), "a sum over labels, then a mean over rows",
                equation="C times the loss", fix="Divide by the number of rows times the number of labels.")
    yield Fault("targets-loss-summed", REGRESSION | MULTI_LABEL, "the loss is summed, not averaged", made,
                rewritten(lambda step: step.value * step.parents[-1].size), "reduction='sum'",
                equation="B · C times the loss", fix="Pass reduction='mean'.")
# fmt: on
