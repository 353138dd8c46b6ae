"""Heads that read every token: BertForTokenClassification and BertForQuestionAnswering."""

from typing import NamedTuple

from torch import Tensor, nn

from .config import BertConfig
from .model import BertModel
from .shapes import reported


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
