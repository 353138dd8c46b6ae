"""The network of *Demystifying BERT*, with the mistakes in its implementation corrected.

The tutorial's own architecture is kept: sinusoidal positions, segments 1 and 2 with 0 for padding, no norm on the embeddings, no
pooler, and heads that end in a log-softmax. The tutorial's mistakes are in `demystified_as_written`.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PADDING = 0  # token id and segment of padding
IGNORED = -100  # label of a token or pair without a target


class PositionalEmbedding(nn.Module):
    """sin(s/10000^(2i/H)) at feature 2i, cos(s/10000^(2i/H)) at feature 2i+1: S -> (S, H); Vaswani et al. 2017, section 3.5."""

    table: Tensor

    def __init__(self, hidden_size: int, max_positions: int = 512) -> None:
        super().__init__()
        position = torch.arange(max_positions, dtype=torch.float64)[:, None]  # (P, 1)
        even = torch.arange(0, hidden_size, 2, dtype=torch.float64)  # (⌈H/2⌉,): 2i
        angle = position / 10000.0 ** (even / hidden_size)  # (P, ⌈H/2⌉)
        table = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[:, :hidden_size]  # (P, H); an odd H ends in a sine
        self.register_buffer("table", table)  # moved and saved with the module

    def forward(self, length: int) -> Tensor:
        return self.table[:length]


class BERTEmbedding(nn.Module):
    """Dropout of token + position + segment: (B, S), (B, S) -> (B, S, H)."""

    def __init__(
        self, vocab_size: int, hidden_size: int, max_positions: int = 512, segments: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, hidden_size, padding_idx=PADDING)
        self.segment = nn.Embedding(segments, hidden_size, padding_idx=PADDING)
        self.position = PositionalEmbedding(hidden_size, max_positions)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        tokens = self.token(ids)  # (B, S, H)
        positions = self.position(ids.shape[1]).to(tokens.dtype)  # (S, H)
        return self.dropout(tokens + positions + self.segment(segments))


class MultiHeadedAttention(nn.Module):
    """W concat(softmax(q kᵀ / √d) v) + b, with the heads concatenated: (B, S, H), mask (B, S) -> (B, S, H)."""

    def __init__(self, heads: int, hidden_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output_linear = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        query = self.by_head(self.query(hidden))  # (B, h, S, d)
        key = self.by_head(self.key(hidden))  # (B, h, S, d)
        value = self.by_head(self.value(hidden))  # (B, h, S, d)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, h, S, S)
        lowest = scores.new_full((), -math.inf).nan_to_num()  # the lowest finite number of the format
        weights = torch.where(mask[:, None, None, :], scores, lowest).softmax(-1)  # (B, h, S, S)
        context = self.dropout(weights) @ value  # (B, h, S, d)
        return self.output_linear(context.transpose(1, 2).flatten(2))  # (B, S, H)

    def by_head(self, x: Tensor) -> Tensor:
        """Return x split by head: (B, S, H) -> (B, h, S, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """W₂ dropout(GELU(W₁ x + b₁)) + b₂: (B, S, H) -> (B, S, H)."""

    def __init__(self, hidden_size: int, intermediate_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(hidden))))


class EncoderLayer(nn.Module):
    """Attention, then the feed-forward network, each with a residual and its own LayerNorm: (B, S, H) -> (B, S, H)."""

    def __init__(
        self, hidden_size: int, heads: int, intermediate_size: int, eps: float = 1e-12, dropout: float = 0.1,
        probs_dropout: float = 0.1, activation_dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_multihead = MultiHeadedAttention(heads, hidden_size, probs_dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, activation_dropout)
        self.output_norm = nn.LayerNorm(hidden_size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        attended = self.attention_norm(hidden + self.dropout(self.self_multihead(hidden, mask)))  # (B, S, H)
        return self.output_norm(attended + self.dropout(self.feed_forward(attended)))


class BERT(nn.Module):
    """Embedding and encoder layers: (B, S) ids, (B, S) segments -> (B, S, H); without a mask, ids of 0 are padding."""

    def __init__(
        self, vocab_size: int, hidden_size: int = 768, n_layers: int = 12, heads: int = 12, intermediate_size: int = 3072,
        max_positions: int = 512, segments: int = 3, eps: float = 1e-12, dropout: float = 0.1, probs_dropout: float = 0.1,
        activation_dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = BERTEmbedding(vocab_size, hidden_size, max_positions, segments, dropout)
        rates = (dropout, probs_dropout, activation_dropout)
        layers = [EncoderLayer(hidden_size, heads, intermediate_size, eps, *rates) for _ in range(n_layers)]
        self.encoder_blocks = nn.ModuleList(layers)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor | None = None) -> Tensor:
        attended = ids != self.embedding.token.padding_idx if mask is None else mask != 0  # (B, S)
        hidden = self.embedding(ids, segments)  # (B, S, H)
        for layer in self.encoder_blocks:
            hidden = layer(hidden, attended)
        return hidden


class NextSentencePrediction(nn.Module):
    """log softmax(W x₀ + b), with x₀ the first token's hidden state: (B, S, H) -> (B, 2)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.linear(hidden[:, 0]), -1)


class MaskedLanguageModel(nn.Module):
    """log softmax(W x + b): (B, S, H) -> (B, S, V)."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.linear(hidden), -1)


class BERTLM(nn.Module):
    """BERT with both heads: (B, S) ids, (B, S) segments -> (B, 2) and (B, S, V) log-probabilities."""

    def __init__(self, bert: nn.Module, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.bert = bert
        self.next_sentence = NextSentencePrediction(hidden_size)
        self.mask_lm = MaskedLanguageModel(hidden_size, vocab_size)

    def forward(self, ids: Tensor, segments: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden = self.bert(ids, segments, mask)
        return self.next_sentence(hidden), self.mask_lm(hidden)


def pretraining_loss(log_probs: Tensor, labels: Tensor, ignored: int = IGNORED) -> Tensor:
    """Return the mean negative log-likelihood over the labels: (…, n) log-probabilities, (…) labels -> a scalar."""
    return F.nll_loss(log_probs.flatten(0, -2), labels.flatten(), ignore_index=ignored)
