"""Faults of the values of losses over classes: masked LM, next sentence, tokens, multiple choice and spans.

Faults of the values of losses with numeric targets: regression and multi-label classification.
"""

from collections.abc import Callable, Iterator

import numpy as np

from conformance.faults.changes import rewritten, rewritten_equation
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
def faults() -> Iterator[Fault]:
    """Yield the faults of losses over classes."""
    yield Fault("next-sentence-label", NEXT_SENTENCE, "label 1 is taken as is-next; in BERT, label 0 is",
                "transformers#836, transformers#524",
                _inverted, "the opposite convention",
                equation="cross entropy with 1 − label",
                fix="Label 0 means that the second sentence follows the first.")
    yield Fault("loss-ignores-zero", NEXT_SENTENCE | TOKENS, "everything with label 0 is left out of the loss",
                "`demystified`'s tutorial", _without_zero, "ignore_index=0, meant for padded tokens",
                equation="mean over labels ≠ 0",
                fix="Use ignore_index=-100.")
    yield Fault("loss-denominator", MASKED_LM | TOKENS, "the loss is divided by the number of all tokens, not of the labelled ones",
                "tinygrad d2e3c391e8", rewritten(lambda step: step.value * (labels_of(step.site) != IGNORED_LABEL).mean()),
                "a mean over all positions, in which those without a label count as 0",
                equation="Σ loss / (B · S)",
                fix="Divide by the number of tokens with a label other than -100.")
    yield Fault("loss-labels-shifted", MASKED_LM | TOKENS, "the logits of each token are scored by the label of the next one",
                "constructed", _shifted, "the shift of a causal language model, logits[:, :-1] and labels[:, 1:]",
                equation="mean cross entropy of logits s and label s + 1",
                fix="Score each token's logits by its own label.")
    yield Fault("span-labels-exchanged", SPANS, "start_positions and end_positions are exchanged in the loss", "constructed",
                _exchanged,
                equation="cross entropy of the start logits and end_positions, and of the end logits and start_positions",
                fix="Score logits[..., 0] by start_positions, logits[..., 1] by end_positions.")
    yield Fault("span-loss-summed", frozenset({"mean_loss"}), "the losses of start and end are added, not averaged", "constructed",
                rewritten(lambda step: step.value * len(step.parents)), "the sum of two heads' losses, as in pre-training",
                equation="start loss + end loss",
                fix="Divide the sum by 2.")
    yield Fault("choices-interleaved", CHOICES, "the choices of a question are read from rows Q apart, Q the number of questions",
                "constructed", _interleaved, "logits.view(choices, questions) for logits.view(questions, choices)",
                equation="x_qc = logit of row c Q + q",
                fix="The rows of a question are consecutive: logits.view(-1, choices).")
    yield Fault("choices-one-by-one", CHOICES, "each choice is scored independently, not against the others", "constructed",
                rewritten_equation(ChoiceCrossEntropy, _of_single_choices),
                "binary cross entropy, since the head has a single logit",
                equation="mean of log(1 + exp(x)) − y x, y 1 at the right choice",
                fix="Take the softmax over the choices of a question.")
# fmt: on


REGRESSION, MULTI_LABEL = frozenset({"regression_loss"}), frozenset({"multi_label_loss"})


def _loss(value: Callable[[Array, Array], Array | float]) -> Change:
    """Return the change that replaces the loss by a function of logits and targets, (B, C) each."""
    return rewritten_equation(TargetLoss, lambda step: as_array(value(step.logits, step.targets)))


def _broadcast(x: Array, t: Array) -> Array:
    """Return the squared error with logits (B, 1) and targets (B,) broadcast to (B, B); the plain one for several labels."""
    return as_array(np.square(x - t[:, 0]).mean()) if x.shape[-1] == 1 else as_array(np.square(x - t).mean())


# fmt: off
def target_loss_faults() -> Iterator[Fault]:
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
                _loss(lambda x, t: as_array((t * (np.logaddexp.reduce(x, -1, keepdims=True) - x)).sum(-1).mean())),
                "cross_entropy with numeric targets",
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
