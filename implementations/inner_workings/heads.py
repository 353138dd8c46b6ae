"""The heads: BertForSequenceClassification with its losses, and those of Hugging Face that read every token."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from .config import BertConfig
from .model import BertModel
from .shapes import reported


class Classified(NamedTuple):
    """The output of a classification.

    Attributes:
        loss: a scalar; None without labels.
        logits: (B, labels).
    """

    loss: Tensor | None
    logits: Tensor


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None = None) -> Tensor:
    """Return the loss of a training problem: (B, labels) logits and labels -> a scalar.

    regression: the mean square error of numbers, (B, labels), or (B,) for one label. single_label_classification: the cross entropy
    of integers (B,), with −100 for a row without a label. multi_label_classification: the binary cross entropy of each label, for
    floats (B, labels). Without a problem type, as in Hugging Face, one label is a regression, and several are a classification with
    a single label where the labels are integers.
    """
    if problem_type is None:
        several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        problem_type = "regression" if logits.shape[-1] == 1 else several
    if problem_type == "regression":
        return F.mse_loss(logits, labels.to(logits.dtype).view_as(logits))
    if problem_type == "multi_label_classification":
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
        self.problem_type = config.problem_type

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None, labels: Tensor | None = None, position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None, encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> Classified:  # fmt: skip
        pooled = self.bert(
            input_ids, attention_mask, token_type_ids, head_mask, position_ids, inputs_embeds, encoder_hidden_states,
            encoder_attention_mask,
        ).pooler_output  # (B, H)  # fmt: skip
        assert pooled is not None
        pooled = reported("pooled, dropout", self.dropout(pooled))
        logits = reported("logits", self.classifier(pooled))  # (B, labels)
        if labels is None:
            return Classified(None, logits)
        return Classified(reported("loss", classification_loss(logits, labels, self.problem_type)), logits)


class TokenLogits(NamedTuple):
    """The logits of heads that read every token.

    Attributes:
        classes: (B, S, labels); None without a token classifier.
        spans: (B, S, 2), logits of the start and the end of a span; None without a question-answering head.
    """

    classes: Tensor | None
    spans: Tensor | None


class BertForTokens(nn.Module):
    """BertModel with linear layers on every position: Hugging Face's BertForTokenClassification, BertForQuestionAnswering, or both.

    Args:
        classes: whether there is a token classifier, after a dropout.
        spans: whether there are logits for the start and the end of a span.
    """

    def __init__(self, config: BertConfig, classes: bool, spans: bool, add_pooling_layer: bool = False) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer)
        own = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if own is None else own)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if classes else None
        self.qa_outputs = nn.Linear(config.hidden_size, 2) if spans else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None, encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> TokenLogits:  # fmt: skip
        hidden = self.bert(
            input_ids, attention_mask, token_type_ids, position_ids=position_ids, encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
        ).last_hidden_state  # (B, S, H)  # fmt: skip
        classes = None if self.classifier is None else reported("logits", self.classifier(self.dropout(hidden)))
        spans = None if self.qa_outputs is None else reported("start and end logits", self.qa_outputs(hidden))
        return TokenLogits(classes, spans)
