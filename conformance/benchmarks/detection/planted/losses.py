"""Mistakes in the losses of the heads."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.heads import pair_head, predictions_head, spans_head
from conformance.benchmarks.detection.planted.plant import in_place, masked_lm, next_sentence, override
from conformance.benchmarks.detection.steps import ChoiceLoss
from conformance.model.architecture import Architecture
from conformance.model.batch import IGNORED_LABEL

PAIR_LOSS, TOKENS_LOSS, SPANS = "cls.seq_relationship.loss", "cls.predictions.loss", "qa_outputs"


def _answers(a: Architecture) -> bool:
    return "question_answering" in a.heads


def _chooses(a: Architecture) -> bool:
    return "multiple_choice" in a.heads


def _other_label(labels: Tensor) -> Tensor:
    """Use label 1 for is-next."""
    return torch.where(labels == IGNORED_LABEL, labels, 1 - labels)


def _zero_dropped(labels: Tensor) -> Tensor:
    """Treat label 0 as an ignored label."""
    return labels.masked_fill(labels == 0, IGNORED_LABEL)


def _all_tokens(model: Bert) -> None:
    """Divide the sum over labelled tokens by the number of all tokens."""
    loss = predictions_head(model).loss
    loss.reduction = "sum"
    right = loss.forward
    override(loss, "forward", lambda logits, labels: right(logits, labels) / labels.numel())


def _summed(model: Bert) -> None:
    """Sum over labelled tokens instead of taking the mean."""
    predictions_head(model).loss.reduction = "sum"


def _shifted(model: Bert) -> None:
    """Shift the labels by one token to the left."""
    override(predictions_head(model).loss, "labels", lambda labels: F.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL))


def _exchanged(model: Bert) -> None:
    """Exchange the labels of start and end."""
    override(spans_head(model), "positions", lambda inputs: (inputs.end_positions, inputs.start_positions))


def _choice_loss(model: Bert) -> ChoiceLoss:
    loss = model.classifier and model.classifier.loss
    assert isinstance(loss, ChoiceLoss)
    return loss


def _interleaved(model: Bert) -> None:
    """Arrange the logits with one column for each question."""
    override(_choice_loss(model), "questions", lambda logits, count: logits.view(-1, count).T)


def _one_by_one(model: Bert) -> None:
    """Compute the binary cross entropy of each choice, over the labelled questions."""

    def each(logits: Tensor, labels: Tensor) -> Tensor:
        kept = labels != IGNORED_LABEL
        right = F.one_hot(labels[kept], logits.shape[-1]).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits[kept], right)

    override(_choice_loss(model), "each", each)


PLANTS = (
    in_place("next-sentence-label", "the loss takes label 1 as is-next",
             lambda m: override(pair_head(m).loss, "labels", _other_label), PAIR_LOSS, suits=next_sentence),
    in_place("loss-ignores-zero", "the next-sentence loss drops label 0",
             lambda m: override(pair_head(m).loss, "labels", _zero_dropped), PAIR_LOSS, suits=next_sentence),
    in_place("loss-denominator", "the masked-LM loss is divided by the number of all tokens",
             _all_tokens, TOKENS_LOSS, suits=masked_lm),
    in_place("loss-labels-shifted", "the loss scores the logits of a token by the label of the next",
             _shifted, TOKENS_LOSS, suits=masked_lm),
    in_place("span-labels-exchanged", "the losses of start and end take each other's positions",
             _exchanged, f"{SPANS}.start_loss", f"{SPANS}.end_loss", suits=_answers),
    in_place("span-loss-summed", "the losses of start and end are added, not averaged",
             lambda m: override(spans_head(m).loss, "forward", torch.add), f"{SPANS}.loss", suits=_answers),
    in_place("choices-interleaved", "the choices of a question are taken from rows that stand apart",
             _interleaved, "classifier.loss", suits=_chooses),
    in_place("choices-one-by-one", "each choice is judged by itself", _one_by_one, "classifier.loss", suits=_chooses),
    in_place("loss-summed", "the masked-LM loss is a sum", _summed, TOKENS_LOSS, suits=masked_lm),
)  # fmt: skip
