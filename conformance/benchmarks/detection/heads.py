"""The pooler, the heads and their losses: the modules that read the encoder's last hidden state."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance.benchmarks.detection.steps import (
    ACTIVATIONS,
    Inputs,
    LayerNorm,
    Linear,
    LogProbsLoss,
    LogSoftmax,
    Loss,
    Pointwise,
    SentenceLinear,
    Sum,
    WordLookup,
    labelled,
)
from conformance.model.architecture import Architecture


class Pooler(nn.Module):
    """tanh(W x₀ + b): (B, S, H) -> (B, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.dense = SentenceLinear(a.hidden_size, a.hidden_size)
        self.activation = Pointwise(torch.tanh)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled first token, (B, H)."""
        pooled: Tensor = self.activation(self.dense(hidden, mask))
        return pooled


class Transform(nn.Module):
    """The transform LayerNorm(f(W x + b)) before the masked-LM decoder."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.dense = Linear(a.hidden_size, a.hidden_size)
        self.transform_act_fn = Pointwise(ACTIVATIONS[a.hidden_act])
        self.LayerNorm = LayerNorm(a.hidden_size, a.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return LayerNorm(f(W x + b))."""
        hidden = self.LayerNorm(self.transform_act_fn(self.dense(hidden)))
        return hidden


class Predictions(nn.Module):
    """The masked-LM head: a transform and a decoder tied to the word embeddings.

    The plain head consists of an untied decoder and a log-softmax.
    """

    def __init__(self, a: Architecture, words: WordLookup) -> None:
        super().__init__()
        plain = "plain_masked_lm" in a.heads
        self.transform = None if plain else Transform(a)
        self.decoder = Linear(a.hidden_size, a.vocab_size)
        if not plain:
            self.decoder.weight = words.weight
        self.log_probs = LogSoftmax() if plain else None
        self.loss = LogProbsLoss() if plain else Loss()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits or log-probabilities that the loss is computed from: (B, S, H) -> (B, S, V)."""
        logits: Tensor = self.decoder(self.transform(hidden) if self.transform else hidden)
        return self.log_probs(logits) if self.log_probs else logits


class Classifier(Linear):
    """Class logits of the pooled sentence, with their loss: (B, H) -> (B, C)."""

    def __init__(self, inputs: int, outputs: int, loss: Loss | None = None) -> None:
        super().__init__(inputs, outputs)
        self.loss = loss or Loss()


class PlainClassifier(SentenceLinear):
    """Class logits of the first token's hidden state, with a log-softmax and its loss: (B, S, H) -> (B, C)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.log_probs = LogSoftmax()
        self.loss = LogProbsLoss()


class Mean(nn.Module):
    """The mean of several losses."""

    def forward(self, *losses: Tensor) -> Tensor:
        """Return the sum of the losses, divided by their number."""
        return torch.stack(losses).mean()


class Spans(Linear):
    """Logits of span starts and ends, with their losses: (B, S, H) -> (B, S, 2)."""

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, 2)
        self.start_loss = Loss()
        self.end_loss = Loss()
        self.loss = Mean()

    def positions(self, inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
        """Return the labels of starts and of ends."""
        return inputs.start_positions, inputs.end_positions

    def losses(self, logits: Tensor, inputs: Inputs) -> None:
        """Compute the loss of starts, the loss of ends, and their mean."""
        start, end = self.positions(inputs)
        if labelled(start) and labelled(end):
            self.loss(self.start_loss(logits[..., 0], start), self.end_loss(logits[..., 1], end))


class Pooled(nn.Module):
    """The mean over attended tokens, or the first token: (B, S, H) -> (B, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.first = a.pooling == "cls"

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the pooled sentence, (B, H)."""
        kept = mask[:, :, None].to(hidden.dtype)
        return hidden[:, 0] if self.first else (hidden * kept).sum(1) / kept.sum(1)


class SentenceEmbedding(nn.Module):
    """The pooled sentence divided by its Euclidean norm: (B, S, H) -> (B, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.pooled = Pooled(a)

    def normal(self, pooled: Tensor) -> Tensor:
        """Return the normalized embedding: (B, H) -> (B, H)."""
        return F.normalize(pooled, dim=1)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the normalized pooled sentence, (B, H)."""
        return self.normal(self.pooled(hidden, mask))


class PretrainingHeads(nn.Module):
    """The masked-LM and next-sentence heads that the architecture has, and the sum of their losses."""

    def __init__(self, a: Architecture, words: WordLookup) -> None:
        super().__init__()
        width = a.hidden_size
        self.predictions = Predictions(a, words) if {"masked_lm", "plain_masked_lm"} & set(a.heads) else None
        self.seq_relationship: Classifier | PlainClassifier | None = None
        if "next_sentence" in a.heads:
            self.seq_relationship = Classifier(width, 2)
        elif "plain_next_sentence" in a.heads:
            self.seq_relationship = PlainClassifier(width, 2)
        self.loss = Sum()

    def pair(self, hidden: Tensor, pooled: Tensor | None, mask: Tensor) -> Tensor:
        """Return the logits or log-probabilities that the next-sentence loss is computed from, (B, 2)."""
        head = self.seq_relationship
        if isinstance(head, PlainClassifier):
            log_probs: Tensor = head.log_probs(head(hidden, mask))
            return log_probs
        assert head is not None
        logits: Tensor = head(pooled)
        return logits

    def forward(self, hidden: Tensor, pooled: Tensor | None, inputs: Inputs) -> None:
        """Compute the logits, and the losses of heads that have labels."""
        losses = []
        if self.predictions:
            tokens = self.predictions(hidden)
            if labelled(inputs.labels):
                losses.append(self.predictions.loss(tokens, inputs.labels))
        if self.seq_relationship:
            pair = self.pair(hidden, pooled, inputs.mask)
            if labelled(inputs.next_sentence_label):
                losses.append(self.seq_relationship.loss(pair, inputs.next_sentence_label))
        if len(losses) == 2:
            self.loss(*losses)
