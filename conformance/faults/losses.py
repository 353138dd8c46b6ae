"""Faults of the values of losses over classes: masked LM, next sentence, tokens, multiple choice and spans.

Faults of the values of losses with numeric targets: regression and multi-label classification.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.edits import rewritten, rewritten_equation
from conformance.faults.fault import Change, Fault, FaultContext, with_batch
from conformance.model.batch import IGNORED_LABEL
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.losses import LABELS, ChoiceCrossEntropy, TargetLoss, labels_of, sigmoid

MASKED_LM = frozenset({"masked_lm_loss", "masked_lm_loss_of_log_probs"})
NEXT_SENTENCE = frozenset({"next_sentence_loss", "next_sentence_loss_of_log_probs"})
TOKENS = frozenset({"token_classification_loss"})
CHOICES = frozenset({"multiple_choice_loss"})
SPANS = frozenset({"span_start_loss", "span_end_loss"})


def _inverted(step: Step, _: FaultContext) -> Step:
    labels = step.site.batch.next_sentence_label
    assert labels is not None
    return with_batch(step, next_sentence_label=np.where(labels == IGNORED_LABEL, labels, 1 - labels))


def _without_zero(step: Step, _: FaultContext) -> Step | None:
    labels = labels_of(step.site)
    kept = np.where(labels == 0, IGNORED_LABEL, labels)
    return with_batch(step, **{LABELS[step.site.activation.kind]: kept}) if (kept != IGNORED_LABEL).any() else None


def _shifted(step: Step, _: FaultContext) -> Step | None:
    """Return the loss with the logits of each position scored by the label of the next position."""
    labels = labels_of(step.site)
    moved = np.concatenate([labels[:, 1:], np.full_like(labels[:, :1], IGNORED_LABEL)], 1)
    return with_batch(step, **{LABELS[step.site.activation.kind]: moved}) if (moved != IGNORED_LABEL).any() else None


def _exchanged(step: Step, _: FaultContext) -> Step | None:
    batch = step.site.batch
    if batch.start_positions is None or batch.end_positions is None:
        return None
    return with_batch(step, start_positions=batch.end_positions, end_positions=batch.start_positions)


def _interleaved(step: Step, _: FaultContext) -> Step:
    """Return the loss with the choices of question q, of Q questions, at rows q, q + Q, q + 2 Q and so on."""
    order = np.arange(step.site.batch.size).reshape(-1, len(labels_of(step.site))).T.ravel()
    return step.replaced(parents=(step.parents[0][order],))


def _of_single_choices(step: ChoiceCrossEntropy) -> Array:
    """Return the loss log(1 + exp(x)) − y x, averaged over the choices of the labelled questions; y = 1 at the right choice."""
    logits, labels = step.rows
    right = np.arange(logits.shape[-1]) == labels[:, None]
    return as_array((np.logaddexp(0.0, logits) - right * logits).mean())


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("next-sentence-label", NEXT_SENTENCE, "label 1 is taken as is-next; in BERT, label 0 is", _inverted),
    Fault("loss-ignores-zero", NEXT_SENTENCE | TOKENS, "everything with label 0 is left out of the loss", _without_zero),
    Fault("loss-denominator", MASKED_LM | TOKENS, "the loss is divided by the number of all tokens, not of the labelled ones",
          rewritten(lambda step: step.value * (labels_of(step.site) != IGNORED_LABEL).mean())),
    Fault("loss-labels-shifted", MASKED_LM | TOKENS, "the logits of each token are scored by the label of the next one", _shifted),
    Fault("span-labels-exchanged", SPANS, "start_positions and end_positions are exchanged in the loss", _exchanged),
    Fault("span-loss-summed", frozenset({"mean_loss"}), "the losses of start and end are added, not averaged",
          rewritten(lambda step: step.value * len(step.parents))),
    Fault("choices-interleaved", CHOICES, "the choices of a question are read from rows Q apart, Q the number of questions",
          _interleaved),
    Fault("choices-one-by-one", CHOICES, "each choice is scored independently, not against the others",
          rewritten_equation(ChoiceCrossEntropy, _of_single_choices)),
)
# fmt: on


REGRESSION, MULTI_LABEL = frozenset({"regression_loss"}), frozenset({"multi_label_loss"})


def _loss(value: Callable[[Array, Array], Array | float]) -> Change:
    """Return the change that replaces the loss by a function of logits and targets, (B, C) each."""
    return rewritten_equation(TargetLoss, lambda step: as_array(value(step.logits, step.targets)))


def _broadcast(x: Array, t: Array) -> Array:
    """Return the squared error with logits (B, 1) and targets (B,) broadcast to (B, B); the plain one for several labels."""
    return as_array(np.square(x - t[:, 0]).mean()) if x.shape[-1] == 1 else as_array(np.square(x - t).mean())


# fmt: off
TARGET_LOSS_FAULTS: tuple[Fault, ...] = (
    Fault("targets-broadcast", REGRESSION, "each row's logit is compared with the targets of all rows", _loss(_broadcast)),
    Fault("regression-loss-halved", REGRESSION, "the squared error is halved", _loss(lambda x, t: np.square(x - t).mean() / 2.0)),
    Fault("regression-loss-absolute", REGRESSION, "the error is absolute, not squared", _loss(lambda x, t: np.abs(x - t).mean())),
    Fault("regression-as-classes", REGRESSION, "the loss is the cross entropy of a single class, which is 0",
          _loss(lambda x, t: 0.0)),
    Fault("multi-label-as-classes", MULTI_LABEL, "the labels are taken as mutually exclusive classes",
          _loss(lambda x, t: as_array((t * (np.logaddexp.reduce(x, -1, keepdims=True) - x)).sum(-1).mean()))),
    Fault("multi-label-sigmoid-twice", MULTI_LABEL, "the sigmoid is taken twice",
          _loss(lambda x, t: (np.logaddexp(0.0, sigmoid(x)) - t * sigmoid(x)).mean())),
    Fault("targets-loss-summed-over-labels", MULTI_LABEL, "the loss is summed over the labels of a row, not averaged",
          rewritten(lambda step: step.value * step.parents[-1].shape[-1])),
    Fault("targets-loss-summed", REGRESSION | MULTI_LABEL, "the loss is summed, not averaged",
          rewritten(lambda step: step.value * step.parents[-1].size)),
)
# fmt: on
