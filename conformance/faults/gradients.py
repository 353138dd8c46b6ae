"""Faults of backward passes: gradients that are detached, lost, counted twice or those of another function.

Faults of the gradients of losses with numeric targets: regression and multi-label classification.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.edits import (
    first_parent,
    multiplied,
    other_weight,
    recast,
    rewritten,
    rewritten_equation,
    with_operand,
    with_result,
)
from conformance.faults.fault import ROWS, Change, Fault, FaultContext, Parameter
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.gradients.losses import CrossEntropyBackward, TargetLossBackward
from conformance.oracle.gradients.norm import NormBackward
from conformance.oracle.gradients.pointwise import GeluBackward, GeluTanhBackward, density
from conformance.oracle.gradients.softmax import ProbabilitiesBackward
from conformance.oracle.losses import LABELS, sigmoid

_NORMS = frozenset({"norm_backward"})
_SOFTMAX = frozenset({"probs_backward"})
_SCORES = frozenset({"scores_backward_query", "scores_backward_key"})
_GELUS = frozenset({"gelu_backward"})
_FUNCTIONS = frozenset({"gelu_backward", "gelu_new_backward", "gelu_pytorch_tanh_backward", "tanh_backward"})
REGRESSION, MULTI_LABEL = frozenset({"regression_loss_backward"}), frozenset({"multi_label_loss_backward"})
_LOSSES = frozenset(f"{loss}_backward" for loss in LABELS) - REGRESSION - MULTI_LABEL
_CROSS_ENTROPIES = frozenset(loss for loss in _LOSSES if "log_probs" not in loss)
_PARAMETERS = frozenset(kind for kind in EQUATIONS if kind.endswith("_gradient")) - {"distance_lookup_gradient", "given_gradient"}
_ANY = _NORMS | _SOFTMAX | _SCORES | _FUNCTIONS | _LOSSES | _PARAMETERS | frozenset(
    f"{step}_backward" for step in ("relu", "log_softmax", "linear", "first_token_linear")
) | REGRESSION | MULTI_LABEL | {"context_backward_probs", "context_backward_value"}  # fmt: skip

SMOOTHING = 0.1  # The label smoothing of Vaswani et al. 2017, section 5.4.


def _terms(which: str, factor: float) -> Change:
    """Return the change that multiplies the terms of a sum whose names end with `which`; None if no term or every term does."""

    def change(step: Step, _: FaultContext) -> Step | None:
        among = [name.endswith(which) for name in step.site.activation.parents]
        if len({*among}) < 2:
            return None
        return Altered(
            step, lambda inner: as_array(sum(factor * p if is_it else p for is_it, p in zip(among, inner.parents, strict=True)))
        )

    return change


def _with_targets(smoothing: float, target: float) -> Change:
    """Return the change of the targets: `smoothing`/C for every class, plus `target` at the label, in place of 1 there alone."""

    def value(step: CrossEntropyBackward) -> Array:
        logits, labels = step.rows
        moved = np.full_like(logits, -smoothing / logits.shape[-1])
        moved[np.arange(len(labels)), labels] += 1.0 - target
        return step.value + float(step.parents[0]) / len(labels) * step.spread(moved)

    return rewritten_equation(CrossEntropyBackward, value)


def _of_first_row(step: Step, _: FaultContext) -> Step | None:
    """Return the gradient with the contributions of the first row of the batch alone."""

    def value(inner: Step) -> Array:
        given = inner.parents[0]
        first = (np.arange(len(given)) == 0).reshape(-1, *(1,) * (given.ndim - 1))
        return with_operand(inner, np.where(first, given, 0.0)).value

    return None if step.site.batch.size == 1 else Altered(step, value)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("gradient-norm-mean-detached", _NORMS, "the backward pass treats the mean of the norm as a constant",
          rewritten_equation(NormBackward, lambda s: s.norm.inverse * (s.parts[0] - s.norm.normal * s.parts[2]))),
    Fault("gradient-norm-variance-detached", _NORMS, "the backward pass treats the variance of the norm as a constant",
          rewritten_equation(NormBackward, lambda s: s.norm.inverse * (s.parts[0] - s.parts[1]))),
    Fault("gradient-norm-statistics-detached", _NORMS, "the backward pass treats mean and variance of the norm as constants",
          rewritten_equation(NormBackward, lambda s: s.norm.inverse * s.parts[0])),
    Fault("gradient-norm-scale-missing", _NORMS, "the backward pass of the norm omits gamma", other_weight(np.ones_like)),
    Fault("gradient-norm-identity", _NORMS, "the gradient passes the norm unchanged (straight through)", first_parent),
    Fault("gradient-softmax-diagonal", _SOFTMAX, "the softmax is differentiated as if each result depended on its own score alone",
          rewritten_equation(ProbabilitiesBackward, lambda s: s.parents[1] * (1.0 - s.parents[1]) * s.parents[0])),
    Fault("gradient-softmax-sum-missing", _SOFTMAX, "the backward pass of the softmax omits the sum over the keys",
          rewritten_equation(ProbabilitiesBackward, lambda s: s.parents[1] * s.parents[0])),
    Fault("gradient-softmax-identity", _SOFTMAX, "the gradient passes the softmax unchanged (straight through)", first_parent),
    Fault("gradient-gelu-tanh", _GELUS, "GELU is differentiated as its tanh approximation", recast(GeluTanhBackward)),
    Fault("gradient-gelu-erf", frozenset({"gelu_new_backward", "gelu_pytorch_tanh_backward"}),
          "the tanh approximation of GELU is differentiated as GELU itself", recast(GeluBackward)),
    Fault("gradient-gelu-without-density", _GELUS, "the derivative of GELU lacks x φ(x)",
          rewritten_equation(GeluBackward, lambda step: step.value - step.parents[0] * density(step.parents[1]))),
    Fault("gradient-function-identity", _FUNCTIONS, "the gradient passes the activation function unchanged (straight through)",
          first_parent),
    Fault("gradient-function-relu", _FUNCTIONS - {"tanh_backward"}, "the activation function is differentiated as a ReLU",
          rewritten(lambda step: np.where(step.parents[1] > 0.0, step.parents[0], 0.0))),
    Fault("gradient-of-skip-missing", frozenset({"sum"}), "the gradient through the residual connection is lost",
          _terms("output.dropout.grad", 0.0), only=(".grad",)),
    Fault("gradient-of-skip-doubled", frozenset({"sum"}), "the gradient through the residual connection is counted twice",
          _terms("output.dropout.grad", 2.0), only=(".grad",)),
    *(
        Fault(f"gradient-through-{name}-missing", frozenset({"sum"}), f"no gradient comes back through the {name}",
              _terms(f".{name}.grad_input", 0.0), only=(".grad",))
        for name in ("query", "key", "value")
    ),
    Fault("gradient-through-mlp-missing", frozenset({"sum"}), "no gradient comes back through the feed-forward network",
          _terms("intermediate.dense.grad_input", 0.0), only=(".grad",)),
    Fault("gradient-of-decoder-lost", frozenset({"sum"}), "the tied word embeddings get no gradient from the decoder",
          _terms(".decoder.grad_weight", 0.0), only=(".grad",)),
    Fault("gradient-of-lookup-lost", frozenset({"sum"}), "the tied word embeddings get a gradient from the decoder only",
          _terms(".word_embeddings.grad_weight", 0.0), only=(".grad",)),
    Fault("gradient-label-smoothing", _CROSS_ENTROPIES, f"the labels are smoothed by {SMOOTHING}",
          _with_targets(SMOOTHING, 1.0 - SMOOTHING)),
    Fault("gradient-without-label", _CROSS_ENTROPIES, "the gradient of the loss is the softmax itself: the label is not subtracted",
          _with_targets(0.0, 0.0)),
    Fault("gradient-of-first-row", _PARAMETERS, "the parameter gets a gradient from the first row of the batch only", _of_first_row,
          extent=ROWS),
    Fault("gradient-missing", _ANY, "there is no gradient: it is 0", rewritten(lambda step: np.zeros_like(step.value)),
          only=(".grad",)),
    Fault("gradient-scaled", _ANY, "the gradient is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, lambda _: 2.0, multiplied, least=-16.0, quantity="factor of the gradient",
                              is_of_sizes=True)),
)
# fmt: on


def _slope(function: Callable[[Array, Array], Array]) -> Change:
    """Return the change that replaces ∂l/∂x by a function of logits and targets, (B, C) each."""
    return lambda step, _: _with_slope(step, function)


def _with_slope(step: Step, function: Callable[[Array, Array], Array]) -> Step | None:
    return with_result(
        step, TargetLossBackward, lambda step: float(step.parents[0]) / step.logits.size * function(step.logits, step.targets)
    )


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
TARGET_GRADIENT_FAULTS: tuple[Fault, ...] = (
    Fault("regression-gradient-absolute", REGRESSION, "the gradient is that of the absolute error, not of the square",
          _slope(lambda x, t: np.sign(x - t))),
    Fault("targets-gradient-without-target", REGRESSION | MULTI_LABEL, "the target is not subtracted",
          lambda step, _: _with_slope(step, lambda x, t: 2.0 * x if step.site.activation.kind in REGRESSION else sigmoid(x))),
    Fault("multi-label-gradient-sigmoid-twice", MULTI_LABEL, "the gradient is that of a loss that takes the sigmoid twice",
          _slope(_sigmoid_twice)),
    Fault("multi-label-gradient-of-logits", MULTI_LABEL, "the logits are used in place of the probabilities",
          _slope(lambda x, t: x - t)),
    Fault("multi-label-gradient-squared", MULTI_LABEL, "the gradient is that of the squared error of the probabilities",
          _slope(_squared)),
    Fault("multi-label-gradient-as-classes", MULTI_LABEL, "the gradient is that of mutually exclusive classes",
          _slope(_as_classes)),
    Fault("multi-label-positives-weighted", MULTI_LABEL, "positive labels are weighted by {value}",
          parameter=Parameter("weight of positives", lambda _: 1.0, lambda _: 2.0, _weighted,
                              quantity="weight of positive labels")),
)
# fmt: on
