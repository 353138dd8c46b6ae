"""Faults of backward passes: gradients that are detached, lost, counted twice or those of another function.

Faults of the gradients of losses with numeric targets: regression and multi-label classification.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.edits import first_parent, other_weight, recast, rewritten, rewritten_equation, with_result
from conformance.faults.fault import ROWS, Change, Fault, FaultContext, Parameter
from conformance.model.batch import IGNORED_LABEL
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.gradients.losses import CrossEntropyBackward, TargetLossBackward
from conformance.oracle.gradients.norm import NormBackward
from conformance.oracle.gradients.pointwise import GeluBackward, GeluTanhBackward
from conformance.oracle.gradients.softmax import ProbabilitiesBackward
from conformance.oracle.losses import labels_of, sigmoid

_NORMS = frozenset({"norm_backward"})
_SOFTMAX = frozenset({"probs_backward"})
_SCORES = frozenset({"scores_backward_query", "scores_backward_key"})
_GELUS = frozenset({"gelu_backward"})
_FUNCTIONS = frozenset({"gelu_backward", "gelu_new_backward", "gelu_pytorch_tanh_backward", "tanh_backward"})
_CROSS_ENTROPIES = frozenset(
    {
        *("masked_lm_loss_backward", "next_sentence_loss_backward", "classification_loss_backward"),
        *("token_classification_loss_backward", "span_start_loss_backward", "span_end_loss_backward"),
        "multiple_choice_loss_backward",
    }
)
_LOSSES = _CROSS_ENTROPIES | {"masked_lm_loss_of_log_probs_backward", "next_sentence_loss_of_log_probs_backward"}
_PARAMETERS = frozenset(
    {
        *("linear_gradient", "first_token_linear_gradient", "bias_gradient", "norm_gradient"),
        *("word_lookup_gradient", "position_lookup_gradient", "token_type_lookup_gradient"),
    }
)
_ANY = (
    _NORMS | _SOFTMAX | _SCORES | _FUNCTIONS | _LOSSES | _PARAMETERS
    | {"relu_backward", "log_softmax_backward", "linear_backward", "first_token_linear_backward"}
    | {"regression_loss_backward", "multi_label_loss_backward"}
    | {"context_backward_probs", "context_backward_value"}
)  # fmt: skip

SMOOTHING = 0.1  # The label smoothing of Vaswani et al. 2017, section 5.4.


def _times(step: Step, factor: float) -> Step:
    """Return the gradient times a factor; it may be rounded, where it may be subnormal, before the multiplication."""

    def rounded(altered: Altered, arithmetic: Arithmetic) -> Array:
        before, after = (arithmetic.storage.rounding_variance(x) for x in (altered.inner.value, altered.value))
        return np.maximum(factor**2 * before - after, 0.0)

    return Altered(step, lambda inner: factor * inner.value, rounded)


def _without(which: str) -> Change:
    """Return the change that omits the terms of a sum whose names end with `which`; None if no term or every term does."""

    def change(step: Step, _: FaultContext) -> Step | None:
        names = step.site.activation.parents
        left = [i for i, name in enumerate(names) if not name.endswith(which)]
        if len(left) in (0, len(names)):
            return None
        return Altered(step, lambda inner: as_array(sum(inner.parents[i] for i in left)))

    return change


def _doubled(which: str) -> Change:
    """Return the change that counts the terms of a sum whose names end with `which` twice; None if no term or every term does."""

    def change(step: Step, _: FaultContext) -> Step | None:
        names = step.site.activation.parents
        twice = [i for i, name in enumerate(names) if name.endswith(which)]
        if len(twice) in (0, len(names)):
            return None
        return Altered(step, lambda inner: as_array(inner.value + sum(inner.parents[i] for i in twice)))

    return change


def _detached_mean(step: NormBackward) -> Array:
    g, _, b = step.parts
    return as_array(step.norm.inverse * (g - step.norm.normal * b))


def _detached_variance(step: NormBackward) -> Array:
    g, a, _ = step.parts
    return as_array(step.norm.inverse * (g - a))


def _diagonal(step: ProbabilitiesBackward) -> Array:
    w, p, *_ = step.parents
    return p * (1.0 - p) * w


def _without_sum(step: ProbabilitiesBackward) -> Array:
    w, p, *_ = step.parents
    return p * w


def _smoothed(step: CrossEntropyBackward) -> Array:
    """Return the gradient for smoothed labels: the target is ε/C for every class, plus 1 − ε at the label."""
    logits, labels = step.rows
    classes = logits.shape[-1]
    moved = np.full((len(labels), classes), -SMOOTHING / classes)
    moved[np.arange(len(labels)), labels] += SMOOTHING
    return step.value + step.scale * step.spread(moved)


def _without_label(step: CrossEntropyBackward) -> Array:
    logits, labels = step.rows
    moved = np.zeros_like(logits)
    moved[np.arange(len(labels)), labels] = 1.0
    return step.value + step.scale * step.spread(moved)


def _averaged_over_all(step: Step, _: FaultContext) -> Step | None:
    labels = labels_of(step.site)
    share = float((labels != IGNORED_LABEL).mean())
    return None if share == 1.0 else _times(step, share)


def _summed(step: Step, _: FaultContext) -> Step | None:
    count = int((labels_of(step.site) != IGNORED_LABEL).sum())
    return None if count == 1 else _times(step, float(count))


def _first_row_alone(step: Step, _: FaultContext) -> Step | None:
    if step.site.batch.size == 1:
        return None
    return Altered(step, lambda inner: _of_first_row(inner).value)


def _of_first_row(step: Step) -> Step:
    parents = tuple(np.where((np.arange(len(p)) == 0).reshape(-1, *(1,) * (p.ndim - 1)), p, 0.0) for p in step.parents[:1])
    return step.replaced(parents=(*parents, *step.parents[1:]))


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("gradient-norm-mean-detached", _NORMS, "the backward pass treats the mean of the norm as a constant",
          rewritten_equation(NormBackward, _detached_mean)),
    Fault("gradient-norm-variance-detached", _NORMS, "the backward pass treats the variance of the norm as a constant",
          rewritten_equation(NormBackward, _detached_variance)),
    Fault("gradient-norm-statistics-detached", _NORMS, "the backward pass treats mean and variance of the norm as constants",
          rewritten_equation(NormBackward, lambda step: as_array(step.norm.inverse * step.parts[0]))),
    Fault("gradient-norm-scale-missing", _NORMS, "the backward pass of the norm omits gamma", other_weight(np.ones_like)),
    Fault("gradient-norm-identity", _NORMS, "the gradient passes the norm unchanged (straight through)", first_parent),
    Fault("gradient-softmax-diagonal", _SOFTMAX, "the softmax is differentiated as if each result depended on its own score alone",
          rewritten_equation(ProbabilitiesBackward, _diagonal)),
    Fault("gradient-softmax-sum-missing", _SOFTMAX, "the backward pass of the softmax omits the sum over the keys",
          rewritten_equation(ProbabilitiesBackward, _without_sum)),
    Fault("gradient-softmax-identity", _SOFTMAX, "the gradient passes the softmax unchanged (straight through)", first_parent),
    Fault("gradient-scale-missing", _SCORES, "the backward pass of the scores omits 1/√d",
          lambda step, _: _times(step, step.site.architecture.head_size**0.5)),
    Fault("gradient-scale-twice", _SCORES, "the backward pass of the scores divides by √d twice",
          lambda step, _: _times(step, step.site.architecture.head_size**-0.5)),
    Fault("gradient-gelu-tanh", _GELUS, "GELU is differentiated as its tanh approximation", recast(GeluTanhBackward)),
    Fault("gradient-gelu-erf", frozenset({"gelu_new_backward", "gelu_pytorch_tanh_backward"}),
          "the tanh approximation of GELU is differentiated as GELU itself", recast(GeluBackward)),
    Fault("gradient-gelu-without-density", _GELUS, "the derivative of GELU lacks x φ(x)",
          rewritten_equation(GeluBackward, lambda step: (step.slope - step.density) * step.parents[0])),
    Fault("gradient-function-identity", _FUNCTIONS, "the gradient passes the activation function unchanged (straight through)",
          first_parent),
    Fault("gradient-function-relu", _FUNCTIONS - {"tanh_backward"}, "the activation function is differentiated as a ReLU",
          rewritten(lambda step: np.where(step.parents[1] > 0.0, step.parents[0], 0.0))),
    Fault("gradient-of-skip-missing", frozenset({"sum"}), "the gradient through the residual connection is lost",
          _without("output.dropout.grad"), only=(".grad",)),
    Fault("gradient-of-skip-doubled", frozenset({"sum"}), "the gradient through the residual connection is counted twice",
          _doubled("output.dropout.grad"), only=(".grad",)),
    *(
        Fault(f"gradient-through-{name}-missing", frozenset({"sum"}), f"no gradient comes back through the {name}",
              _without(f".{name}.grad_input"), only=(".grad",))
        for name in ("query", "key", "value")
    ),
    Fault("gradient-through-mlp-missing", frozenset({"sum"}), "no gradient comes back through the feed-forward network",
          _without("intermediate.dense.grad_input"), only=(".grad",)),
    Fault("gradient-of-decoder-lost", frozenset({"sum"}), "the tied word embeddings get no gradient from the decoder",
          _without(".decoder.grad_weight"), only=(".grad",)),
    Fault("gradient-of-lookup-lost", frozenset({"sum"}), "the tied word embeddings get a gradient from the decoder only",
          _without(".word_embeddings.grad_weight"), only=(".grad",)),
    Fault("gradient-label-smoothing", _CROSS_ENTROPIES, f"the labels are smoothed by {SMOOTHING}",
          rewritten_equation(CrossEntropyBackward, _smoothed)),
    Fault("gradient-without-label", _CROSS_ENTROPIES, "the gradient of the loss is the softmax itself: the label is not subtracted",
          rewritten_equation(CrossEntropyBackward, _without_label)),
    Fault("gradient-averaged-over-all", _LOSSES, "the loss is averaged over all rows, not over the labelled ones",
          _averaged_over_all),
    Fault("gradient-summed", _LOSSES, "the loss is summed over the rows, not averaged", _summed),
    Fault("gradient-averaged-over-tokens", _PARAMETERS, "the parameter's gradient is averaged over the tokens, not summed",
          lambda step, _: _times(step, 1.0 / int(step.site.batch.mask.sum()))),
    Fault("gradient-averaged-over-rows", _PARAMETERS, "the parameter's gradient is divided by the batch size",
          lambda step, _: None if step.site.batch.size == 1 else _times(step, 1.0 / step.site.batch.size)),
    Fault("gradient-of-first-row", _PARAMETERS, "the parameter gets a gradient from the first row of the batch only",
          _first_row_alone, extent=ROWS),
    Fault("gradient-missing", _ANY, "there is no gradient: it is 0", rewritten(lambda step: np.zeros_like(step.value)),
          only=(".grad",)),
    Fault("gradient-scaled", _ANY, "the gradient is multiplied by {value}",
          parameter=Parameter("factor", lambda _: 1.0, lambda _: 2.0, _times, least=-16.0, quantity="factor of the gradient")),
)
# fmt: on


REGRESSION, MULTI_LABEL = frozenset({"regression_loss_backward"}), frozenset({"multi_label_loss_backward"})


def _slope(function: Callable[[Array, Array], Array]) -> Change:
    """Return the change that replaces ∂l/∂x by a function of logits and targets, (B, C) each."""
    return lambda step, _: _with_slope(step, function)


def _with_slope(step: Step, function: Callable[[Array, Array], Array]) -> Step | None:
    return with_result(step, TargetLossBackward, lambda step: step.scale * function(step.logits, step.targets))


def _scaled(factor: Callable[[int, int], float]) -> Change:
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
TARGET_GRADIENT_FAULTS: tuple[Fault, ...] = (
    Fault("targets-gradient-summed", REGRESSION | MULTI_LABEL,
          "the gradient is that of the sum over rows and labels, not of the mean",
          _scaled(lambda rows, labels: float(rows * labels))),
    Fault("targets-gradient-summed-over-labels", MULTI_LABEL,
          "the gradient is that of a mean over rows alone: the labels of a row are summed",
          _scaled(lambda rows, labels: float(labels))),
    Fault("targets-gradient-summed-over-rows", MULTI_LABEL, "the gradient is that of a mean over labels alone: the rows are summed",
          _scaled(lambda rows, labels: float(rows))),
    Fault("regression-gradient-halved", REGRESSION, "the gradient of the square lacks its factor of two",
          _scaled(lambda rows, labels: 0.5)),
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
