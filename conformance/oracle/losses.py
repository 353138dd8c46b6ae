"""The values of the losses: mean cross entropy over the labelled rows, and the sum or the mean of two."""

import numpy as np

from conformance.errors import UsageError
from conformance.model.batch import IGNORED_LABEL, Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Sum, sum_variance
from conformance.oracle.maps import LinearMap, Roundings, diagonal
from conformance.oracle.step import Site, Step, elementwise

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
    """Those that a loss at `site`, or its gradient, is the mean over, −100 where they are ignored; `UsageError` without any."""
    name = LABELS[site.activation.kind.removesuffix("_backward")]
    labels: Ids | None = site.batch.arrays().get(name)
    if labels is None:
        raise UsageError(f"{site.activation.name} needs {name} in the batch")
    return labels


class Labelled(Step):
    """A mean over the rows of the last parent that have a label, or the gradient of one."""

    def scores(self, logits: Array) -> Array:
        """A view of the logits: the scores of every label, the classes last."""
        return logits

    @cached_property
    def _labels(self) -> Ids:
        return labels_of(self.site)

    @cached_property
    def rows(self) -> tuple[Array, Ids]:
        """The rows that have a label, and their labels."""
        kept = self._labels != IGNORED_LABEL
        return self.scores(self.parents[-1])[kept], self._labels[kept]

    def spread(self, rows: Array) -> Array:
        """These at the rows that have a label, 0 elsewhere."""
        full = np.zeros_like(self.parents[-1])
        self.scores(full)[self._labels != IGNORED_LABEL] = rows
        return full

    def over_classes(self, x: Array) -> Array:
        """The sum over the classes that each score stands among, in its place."""
        sums = np.zeros_like(x)
        scores = self.scores(sums)
        scores[...] = self.scores(x).sum(-1, keepdims=True)
        return sums

    def _with_slope(self, slope: Array) -> LinearMap:
        """The Jacobian with that slope at labelled rows, 0 elsewhere."""
        full = self.spread(slope / max(len(slope), 1))
        return LinearMap(lambda v: np.asarray((full**2 * v).sum()), lambda w: full * w)


class CrossEntropy(Labelled):
    """L = mean over labelled rows of log Σ_c exp(x_c) − x_label; rows labelled -100 do not count. (..., C) -> ()."""

    @cached_property
    def _log_probs(self) -> Array:
        logits, _ = self.rows
        shifted = logits - logits.max(-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))

    @cached_property
    def value(self) -> Array:
        """The equation, a 0-d array."""
        _, labels = self.rows
        return np.asarray(-np.take_along_axis(self._log_probs, labels[:, None], -1).mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂L/∂x = (softmax(x) − onehot(label)) / N at labelled rows, 0 elsewhere."""
        _, labels = self.rows
        slope = np.exp(self._log_probs)
        slope[np.arange(len(labels)), labels] -= 1.0
        return (self._with_slope(slope),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Of a row: u²/3 · (m² + (s_label − m)² + l² + C) for shift, log-sum-exp and difference.

        Added to it are a third of the squares of exp's relative error and of log's error at log-sum-exp.
        C, the number of classes, bounds Σ C_k²/C² of the sum. The mean over N rows divides the rows' variance by N and adds
        its own accumulation, at most N partial sums of at most L.
        """
        u2 = arithmetic.elementwise.unit_roundoff**2 / 3.0
        logits, labels = self.rows
        log_probs = np.take_along_axis(self._log_probs, labels[:, None], -1)
        top = logits.max(-1, keepdims=True)
        lse = np.take_along_axis(logits, labels[:, None], -1) - log_probs - top
        functions, inner = arithmetic.functions, arithmetic.elementwise
        own = (functions.relative("exp", inner) ** 2 + functions.error("log", lse, inner) ** 2) / 3.0
        row = u2 * (top**2 + (log_probs + lse) ** 2 + log_probs**2 + logits.shape[-1]) + own
        row = row + arithmetic.call_variance(log_probs)
        count = max(len(labels), 1)
        mean = u2 * (count + 1) * self.value**2 + arithmetic.storage.rounding_variance(self.value)
        return elementwise(np.asarray(row.sum() / count**2 + mean))


class Span(Labelled):
    """Of (B, S, 2): the classes are the S positions, the scores those at one index of the last axis, 0 of starts and 1 of ends."""

    def scores(self, logits: Array) -> Array:
        """(B, S)."""
        return logits[..., int("end" in self.site.activation.kind)]


class SpanCrossEntropy(Span, CrossEntropy):
    """L = mean over labelled rows of log Σ_s exp(x_s) − x_label; x the start logits, or the end logits. (B, S, 2) -> ()."""


class Choice(Labelled):
    """Of (B, 1): the classes are the rows of one question, which stand one after the other."""

    def scores(self, logits: Array) -> Array:
        """(Q, B / Q)."""
        return logits.reshape(len(self._labels), -1)


class ChoiceCrossEntropy(Choice, CrossEntropy):
    """L = mean over labelled questions of log Σ_c exp(x_c) − x_label; c counts the rows of one question. (B, 1) -> ()."""


class NegativeLogLikelihood(Labelled):
    """L = −mean over labelled rows of l_label, l the log-probabilities; rows labelled -100 do not count. (..., C) -> ()."""

    @cached_property
    def _chosen(self) -> Array:
        log_probs, labels = self.rows
        return np.take_along_axis(log_probs, labels[:, None], -1)

    @cached_property
    def value(self) -> Array:
        """The equation, a 0-d array."""
        return np.asarray(-self._chosen.mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂L/∂l = −onehot(label) / N at labelled rows, 0 elsewhere."""
        log_probs, labels = self.rows
        slope = np.zeros_like(log_probs)
        slope[np.arange(len(labels)), labels] = -1.0
        return (self._with_slope(slope),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The mean's accumulation, at most N partial sums of at most L, and the rounding of the result."""
        u2 = arithmetic.elementwise.unit_roundoff**2 / 3.0
        mean = u2 * (len(self._chosen) + 1) * self.value**2
        return elementwise(np.asarray(mean + arithmetic.storage.rounding_variance(self.value)))


class TotalLoss(Sum):
    """The sum of the heads' losses, as Hugging Face's `BertForPreTraining` returns it."""


class MeanLoss(Sum):
    """L = (Σ_i L_i) / n, as Hugging Face's `BertForQuestionAnswering` returns it of the losses of start and end, n = 2."""

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(np.mean(self.parents, axis=0))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂L/∂L_i = 1/n."""
        return tuple(diagonal(np.asarray(1.0 / len(self.parents))) for _ in self.parents)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Of the sum, as `sum_variance`, divided by n²; halving is exact."""
        own = sum_variance(self.parents, arithmetic) / len(self.parents) ** 2
        return elementwise(np.maximum(own, arithmetic.storage.rounding_variance(self.value)))
