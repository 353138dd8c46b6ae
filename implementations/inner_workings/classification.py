"""BertForSequenceClassification: the classification head and its losses."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from implementations.inner_workings.config import BertConfig
from implementations.inner_workings.model import BertModel
from implementations.inner_workings.shapes import reported


class Classified(NamedTuple):
    """The output of a classification.

    Attributes:
        loss: a scalar; None without labels.
        logits: (B, labels).
    """

    loss: Tensor | None
    logits: Tensor


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss for the type of the labels: (B, labels) logits and labels -> a scalar.

    One label: regression, the mean square error of (B,) numbers. Several labels and integers (B,): single-label classification,
    the cross entropy, with −100 for a row without a label. Several labels and floats (B, labels): multi-label classification,
    the binary cross entropy of each label.
    """
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype).view(-1))
    if labels.is_floating_point():
        return F.binary_cross_entropy_with_logits(logits, labels)
    return F.cross_entropy(logits, labels)


class BertForSequenceClassification(nn.Module):
    """BertModel with a linear layer on its pooled output: (B, S) ids -> (B, labels) logits, and a loss if labels are given."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        own = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if own is None else own)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None, labels: Tensor | None = None, position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Classified:  # fmt: skip
        pooled = self.bert(
            input_ids, attention_mask, token_type_ids, head_mask, position_ids, inputs_embeds
        ).pooler_output  # (B, H)
        assert pooled is not None
        pooled = reported("pooled, dropout", self.dropout(pooled))
        logits = reported("logits", self.classifier(pooled))  # (B, labels)
        return Classified(None if labels is None else reported("loss", classification_loss(logits, labels)), logits)
