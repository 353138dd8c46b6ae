"""The losses of Hugging Face's heads, computed from logits given by activation name."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from conformance import TorchBatch

IGNORED = -100  # label of a position without a target


def losses(logits: dict[str, Tensor], batch: TorchBatch, problem_type: str | None = None) -> dict[str, Tensor]:
    """Return the losses for the labels in the batch, by activation name.

    The sum of the two pre-training losses and the mean of a span's two losses are included.

    Args:
        logits: logits by activation name.
        batch: the batch with its labels.
        problem_type: the config's `problem_type`.
    """
    span = logits.get("qa_outputs")
    start, end = (None, None) if span is None else span.unbind(-1)  # (B, S) each
    labels = {
        "cls.predictions.loss": (logits.get("cls.predictions.decoder"), batch.labels),
        "cls.seq_relationship.loss": (logits.get("cls.seq_relationship"), batch.next_sentence_label),
        "classifier.loss": _labelled(logits.get("classifier"), batch),
        "qa_outputs.start_loss": (start, batch.start_positions),
        "qa_outputs.end_loss": (end, batch.end_positions),
    }
    found = {name: loss for name, (scores, given) in labels.items() if (loss := _loss(scores, given)) is not None}
    if batch.class_targets is not None:
        found["classifier.loss"] = _loss_of_targets(logits["classifier"], batch.class_targets, problem_type)
    if {"cls.predictions.loss", "cls.seq_relationship.loss"} <= found.keys():
        found["cls.loss"] = found["cls.predictions.loss"] + found["cls.seq_relationship.loss"]
    if {"qa_outputs.start_loss", "qa_outputs.end_loss"} <= found.keys():
        found["qa_outputs.loss"] = (found["qa_outputs.start_loss"] + found["qa_outputs.end_loss"]) / 2
    return found


def _labelled(logits: Tensor | None, batch: TorchBatch) -> tuple[Tensor | None, Tensor | None]:
    """Return a classifier's logits with the labels of tokens, of multiple-choice questions, or of sequences."""
    if logits is not None and logits.ndim == 3:
        return logits, batch.token_labels
    if logits is None or logits.shape[-1] > 1 or batch.choice_labels is None:
        return logits, batch.class_labels
    return logits.view(len(batch.choice_labels), -1), batch.choice_labels


def _loss(logits: Tensor | None, labels: Tensor | None) -> Tensor | None:
    """Return the mean cross entropy, as Hugging Face's heads compute it, or None without a head or labels."""
    if logits is None or labels is None or bool((labels == IGNORED).all()):
        return None
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def _loss_of_targets(logits: Tensor, targets: Tensor, problem_type: str | None) -> Tensor:
    """Return BertForSequenceClassification's loss for float labels: regression for a single label, unless the config differs."""
    targets = targets.to(logits.dtype)  # (B, labels), the shape of the logits
    regression = problem_type == "regression" if problem_type else logits.shape[-1] == 1
    return mse_loss(logits, targets) if regression else binary_cross_entropy_with_logits(logits, targets)
