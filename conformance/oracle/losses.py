"""Loss values: the mean cross entropy over the labelled rows, and the sum or the mean of two losses.

Losses with numeric targets: the squared error of a regression, and the binary cross entropy of multi-label classification.

Both are means over all N = B · C elements of the logits x, each with its target t of `Batch.class_targets`, as Hugging Face's
`BertForSequenceClassification` computes them if `problem_type` is `regression` or `multi_label_classification`.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from conformance.errors import UsageError
from conformance.model.batch import IGNORED_LABEL, Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Sum
from conformance.oracle.linear_maps import LinearMap, Roundings, summed
from conformance.oracle.program import call
from conformance.oracle.softmax import LogSoftmax
from conformance.oracle.step import Site, Step, elementwise_roundings
from conformance.oracle.trace import Trace, Traced

LABELS = {
    "masked_lm_loss": "labels",
    "masked_lm_loss_of_log_probs": "labels",
    "next_sentence_loss": "next_sentence_label",
    "next_sentence_loss_of_log_probs": "next_sentence_label",
    "classification_loss": "class_labels",
    "token_classification_loss": "token_labels",
    "span_start_loss": "start_positions",
    "span_end_loss": "end_positions",
    "multiple_choice_loss": "choice_labels",
    "regression_loss": "class_targets",
    "multi_label_loss": "class_targets",
}


def labels_of(site: Site) -> Ids:
    """Return the labels that the loss at `site`, or its gradient, averages over; ignored rows have −100.

    Raises:
        UsageError: the batch does not contain these labels.
    """
    name = LABELS[site.activation.kind.removesuffix("_backward")]
    labels: Ids | None = site.batch.arrays().get(name)
    if labels is None:
        raise UsageError(f"{site.activation.name} needs {name} in the batch")
    return labels


def mean_variance(mean: Array, count: int, arithmetic: Arithmetic) -> Array:
    """Return the variance of the errors of a mean of `count` terms of one sign, and of its rounding to storage.

    The sum has at most as many partial sums as terms, each at most `count` times the mean, and the division rounds once.
    """
    u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
    return as_array(u2 * (count + 1) * mean**2 + arithmetic.storage.rounding_variance(mean))


class Labelled(Step):
    """A mean over the labelled rows of the last parent, or the gradient of such a mean."""

    def scores(self, logits: Array) -> Array:
        """Return a view of the logits with one row of scores per label, classes on the last axis."""
        return logits

    @cached_property
    def _labels(self) -> Ids:
        return labels_of(self.site)

    @cached_property
    def rows(self) -> tuple[Array, Ids]:
        """The scores of the labelled rows, and their labels."""
        return self.of_rows(self.parents[-1]), self._labels[self._labels != IGNORED_LABEL]

    def of_rows(self, x: Array) -> Array:
        """Return what an array in the shape of the logits contains at the labelled rows."""
        return as_array(self.scores(x)[self._labels != IGNORED_LABEL])

    @cached_property
    def log_softmax(self) -> LogSoftmax:
        """The log-softmax of the labelled rows."""
        return LogSoftmax(self.site, self.rows[0])

    def minus_onehot(self, rows: Array) -> Array:
        """Return rows − onehot(label); `rows` is overwritten."""
        rows[np.arange(len(rows)), self.rows[1]] -= 1.0
        return rows

    def spread(self, rows: Array) -> Array:
        """Return an array in the shape of the logits that contains `rows` at the labelled rows and 0 elsewhere."""
        full = np.zeros_like(self.parents[-1])
        self.scores(full)[self._labels != IGNORED_LABEL] = rows
        return full

    def _with_slope(self, slope: Array) -> LinearMap:
        """Return the Jacobian with slope `slope` / N at the N labelled rows and 0 elsewhere."""
        return summed(self.spread(slope / max(len(slope), 1)))


CROSS_ENTROPIES = ("masked_lm_loss", "next_sentence_loss", "classification_loss", "token_classification_loss")


class CrossEntropy(Labelled, kinds=CROSS_ENTROPIES):
    """L = mean over labelled rows of log Σ_c exp(x_c) − x_label; rows with label -100 are ignored. (..., C) -> ()."""

    @cached_property
    def value(self) -> Array:
        """The loss L, a 0-d array."""
        _, labels = self.rows
        return as_array(-np.take_along_axis(self.log_softmax.value, labels[:, None], -1).mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂L/∂x = (softmax(x) − onehot(label)) / N at the N labelled rows, 0 elsewhere."""
        return (self._with_slope(self.minus_onehot(np.exp(self.log_softmax.value))),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the rows and of their mean.

        With the row's maximum m and the label's log-probability l, a row has u²/3 · (m² + (s_label − m)² + l² + C) for shift,
        log-sum-exp and difference, where the number of classes C bounds Σ C_k²/C² of the sum, plus a third of the squares of exp's
        relative error and of log's error at the log-sum-exp. The mean over N rows divides the variance of a row by N and adds its
        own errors (`mean_variance`).
        """
        u2 = arithmetic.elementwise_format.unit_roundoff**2 / 3.0
        logits, labels = self.rows
        log_probs = np.take_along_axis(self.log_softmax.value, labels[:, None], -1)
        top = logits.max(-1, keepdims=True)
        lse = np.take_along_axis(logits, labels[:, None], -1) - log_probs - top
        functions, inner = arithmetic.functions, arithmetic.elementwise_format
        own = (functions.relative("exp", inner) ** 2 + functions.error("log", lse, inner) ** 2) / 3.0
        row = u2 * (top**2 + (log_probs + lse) ** 2 + log_probs**2 + logits.shape[-1]) + own
        row = row + arithmetic.call_rounding_variance(log_probs)
        count = max(len(labels), 1)
        return elementwise_roundings(as_array(row.sum() / count**2 + mean_variance(self.value, count, arithmetic)))


class Span(Labelled):
    """A loss over (B, S, 2) whose classes are the S positions; the last axis holds the start (0) and the end logits (1)."""

    def scores(self, logits: Array) -> Array:
        """Return the start or the end logits, (B, S)."""
        return logits[..., int("end" in self.site.activation.kind)]


class SpanCrossEntropy(Span, CrossEntropy, kinds=("span_start_loss", "span_end_loss")):
    """L = mean over labelled rows of log Σ_s exp(x_s) − x_label for the start or the end logits x. (B, S, 2) -> ()."""


class Choice(Labelled):
    """A loss over (B, 1): the classes are the consecutive rows that belong to one question."""

    def scores(self, logits: Array) -> Array:
        """Return the logits by question, (Q, B / Q)."""
        return logits.reshape(len(self._labels), -1)


class ChoiceCrossEntropy(Choice, CrossEntropy, kinds=("multiple_choice_loss",)):
    """L = mean over labelled questions of log Σ_c exp(x_c) − x_label, where c indexes the rows of one question. (B, 1) -> ()."""


class NegativeLogLikelihood(Labelled, kinds=("masked_lm_loss_of_log_probs", "next_sentence_loss_of_log_probs")):
    """L = −mean over labelled rows of l_label for log-probabilities l; rows with label -100 are ignored. (..., C) -> ()."""

    @cached_property
    def _chosen(self) -> Array:
        log_probs, labels = self.rows
        return np.take_along_axis(log_probs, labels[:, None], -1)

    @cached_property
    def value(self) -> Array:
        """The loss L, a 0-d array."""
        return as_array(-self._chosen.mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂L/∂l = −onehot(label) / N at the N labelled rows, 0 elsewhere."""
        return (self._with_slope(self.minus_onehot(np.zeros_like(self.rows[0]))),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the mean (`mean_variance`)."""
        return elementwise_roundings(mean_variance(self.value, len(self._chosen), arithmetic))


class TotalLoss(Sum, kinds=("total_loss",)):
    """The sum of the losses of all heads, as returned by Hugging Face's `BertForPreTraining`."""


class MeanLoss(Sum, kinds=("mean_loss",)):
    """L = (Σ_i L_i) / n, as Hugging Face's `BertForQuestionAnswering` returns it for the start and end losses, n = 2."""

    def program(self, *parents: Any) -> Any:
        """Return the mean."""
        return super().program(*parents) / float(len(parents))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return all rounding errors, since those of the sum are divided as well."""
        return self.roundings(arithmetic)


class Targeted(Step):
    """A mean over the elements of the last parent, (B, C), or the gradient of such a mean."""

    @cached_property
    def targets(self) -> Array:
        """The targets t, (B, C).

        Raises:
            UsageError: the batch has no `class_targets`.
        """
        targets = self.site.batch.class_targets
        if targets is None:
            raise UsageError(f"{self.site.activation.name} needs class_targets in the batch")
        return targets

    @property
    def logits(self) -> Array:
        """The logits x, (B, C)."""
        return self.parents[-1]

    def term(self, x: Any) -> Any:
        """Return a term l(x, t) of the mean, (B, C), a program of the logits."""
        raise NotImplementedError

    def slope(self, x: Any) -> Any:
        """Return the derivative ∂l/∂x of a term, (B, C), a program of the logits."""
        raise NotImplementedError


class Squared(Targeted):
    """The terms are l = (x − t)²."""

    def term(self, x: Any) -> Any:
        """Return (x − t)²."""
        difference = x - self.targets
        return difference * difference

    def slope(self, x: Any) -> Any:
        """Return 2 (x − t)."""
        return call(x - self.targets) * 2.0


class BinaryEntropy(Targeted):
    """The terms are l = −t log σ(x) − (1 − t) log σ(−x)."""

    def term(self, x: Any) -> Any:
        """Return max(x, 0) − t x + log(1 + exp(−|x|)); (1 − t) x − log σ(x) has parts that are no larger."""
        return np.maximum(x, 0.0) - call(x * self.targets) + call(np.log(1.0 + np.exp(-np.maximum(x, -x))))

    def slope(self, x: Any) -> Any:
        """Return σ(x) − t."""
        return call(call(expit(x)) - self.targets)


class TargetLoss(Targeted):
    """L = mean of l(x, t): (B, C) -> ()."""

    @cached_property
    def _terms(self) -> Trace:
        return Trace(self.term(Traced(self.logits)))

    @cached_property
    def value(self) -> Array:
        """The loss L, a 0-d array."""
        return as_array(self._terms.result.value.mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂L/∂x = ∂l/∂x / N."""
        return (summed(self.slope(self.logits) / self.logits.size),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of l, divided by N², and of the mean (`mean_variance`)."""
        count, terms = self.logits.size, self._terms
        own = np.sum(terms.variance(arithmetic) + arithmetic.call_rounding_variance(terms.result.value)) / count**2
        return elementwise_roundings(as_array(own + mean_variance(self.value, count, arithmetic)))


class SquaredError(Squared, TargetLoss, kinds=("regression_loss",)):
    """L = mean (x − t)²; (B, C) -> ()."""


class BinaryCrossEntropy(BinaryEntropy, TargetLoss, kinds=("multi_label_loss",)):
    """L = mean of −t log σ(x) − (1 − t) log σ(−x); (B, C) -> ()."""


def sigmoid(x: Array) -> Array:
    """Return σ(x) = 1/(1 + exp(−x)), without overflow."""
    return as_array(expit(x))
