"""The losses of Hugging Face's heads, of the logits by the names of their activations."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from conformance import TorchBatch

IGNORED = -100  # the label of a position that has none


def losses(logits: dict[str, Tensor], batch: TorchBatch, problem_type: str | None = None) -> dict[str, Tensor]:
    """The losses of the labels that the batch has; of the two pre-training losses the sum, of a span's two the mean.

    `problem_type` is the config's.
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
    """A classifier's logits with the labels of tokens, of the choices of questions, or of sequences."""
    if logits is not None and logits.ndim == 3:
        return logits, batch.token_labels
    if logits is None or logits.shape[-1] > 1:
        return logits, batch.class_labels
    labels = batch.choice_labels
    return None if labels is None else logits.view(len(labels), -1), labels


def _loss(logits: Tensor | None, labels: Tensor | None) -> Tensor | None:
    """Mean cross entropy, as Hugging Face's heads compute it; None without a head or without labels."""
    if logits is None or labels is None or bool((labels == IGNORED).all()):
        return None
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def _loss_of_targets(logits: Tensor, targets: Tensor, problem_type: str | None) -> Tensor:
    """As BertForSequenceClassification has it for labels that are numbers: of one label a regression, unless the config says."""
    targets = targets.to(logits.dtype)  # (B, labels), as the logits
    regression = problem_type == "regression" if problem_type else logits.shape[-1] == 1
    return mse_loss(logits, targets) if regression else binary_cross_entropy_with_logits(logits, targets)
