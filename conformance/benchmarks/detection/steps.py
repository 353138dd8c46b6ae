"""The steps of a BERT, one small module each, so that a method, a parameter or a module can be replaced on its own."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance.model.batch import IGNORED_LABEL, TorchBatch


@dataclass(frozen=True)
class Inputs:
    """A batch with optional inputs filled in; absent labels are None."""

    ids: Tensor
    types: Tensor
    mask: Tensor
    labels: Tensor | None
    next_sentence_label: Tensor | None
    class_labels: Tensor | None
    token_labels: Tensor | None
    start_positions: Tensor | None
    end_positions: Tensor | None
    choice_labels: Tensor | None

    @classmethod
    def of(cls, batch: TorchBatch) -> "Inputs":
        """Return the inputs of a batch, with token types 0 and mask 1 if they are absent."""
        full = batch.filled()
        assert full.token_type_ids is not None
        assert full.attention_mask is not None
        return cls(
            *(full.input_ids, full.token_type_ids, full.attention_mask, full.labels, full.next_sentence_label, full.class_labels),
            *(full.token_labels, full.start_positions, full.end_positions, full.choice_labels),
        )


class WordLookup(nn.Module):
    """The rows of the word table selected by the token ids: (B, S, H)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(rows, width))

    def rows(self, inputs: Inputs) -> Tensor:
        """Return the indices of the selected rows."""
        return inputs.ids

    def forward(self, inputs: Inputs) -> Tensor:
        """Return E[ids].

        Raises:
            IndexError: an id is negative or outside the table (on the CPU).
        """
        return F.embedding(self.rows(inputs), self.weight)


class TokenTypeLookup(WordLookup):
    """The rows of the token-type table selected by the token types: (B, S, H)."""

    def rows(self, inputs: Inputs) -> Tensor:
        """Return the token types."""
        return inputs.types


class PositionLookup(WordLookup):
    """The rows `first`, `first` + 1, … of the position table, the same for every sequence: (1, S, H)."""

    first = 0

    def rows(self, inputs: Inputs) -> Tensor:
        """Return the position ids, (1, S)."""
        return torch.arange(inputs.ids.shape[1], device=inputs.ids.device)[None] + self.first


class SinusoidLookup(PositionLookup):
    """The rows of a table of sinusoids, which is computed and has no parameters: (1, S, H)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        del self.weight
        self.register_buffer("weight", sinusoids(rows, width))


def sinusoids(rows: int, width: int) -> Tensor:
    """Return PE[s, 2i] = sin(s / 10000^(2i/H)) and PE[s, 2i + 1] = cos(s / 10000^(2i/H)), in float64."""
    feature = torch.arange(width)
    rate = 10000.0 ** (-2.0 * (feature // 2).double() / width)
    angles = torch.arange(rows).double()[:, None] * rate
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos())


class Sum(nn.Module):
    """The sum of the inputs."""

    def add(self, *parts: Tensor) -> Tensor:
        """Return the sum, added from left to right."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the sum of the inputs."""
        return self.add(*parts)


class LayerNorm(Sum):
    """LayerNorm of the sum of the inputs: a residual sum, the sum of three embeddings, or a single tensor."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(width))
        self.bias: Tensor = nn.Parameter(torch.empty(width))
        self.eps = eps

    def normalise(self, x: Tensor) -> Tensor:
        """Return (x − μ) / √(σ² + ε) · γ + β."""
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the LayerNorm of the sum."""
        return self.normalise(self.add(*parts))


class Linear(nn.Module):
    """x Wᵀ + b: (…, inputs) -> (…, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(outputs, inputs))
        self.bias: Tensor = nn.Parameter(torch.empty(outputs))

    def product(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        return self.product(x)


class SentenceLinear(Linear):
    """W x₀ + b for the first token x₀: (B, S, H) -> (B, outputs)."""

    def sentence(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden state that represents the sentence; the mask is used by mistakes that read another one."""
        return hidden[:, 0]

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # Selects the sentence first.
        """Return W x₀ + b."""
        return self.product(self.sentence(hidden, mask))


class Scores(nn.Module):
    """q kᵀ / √d for each head: (B, S, H), (B, S, H) -> (B, h, S, S)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.root = math.sqrt(width // heads)

    def split(self, x: Tensor) -> Tensor:
        """Split the heads: (B, S, H) -> (B, h, S, d)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def product(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the scores of split heads: (B, h, S, d), (B, h, S, d) -> (B, h, S, S)."""
        return query @ key.transpose(-1, -2) / self.root

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Split the heads and return their scores."""
        return self.product(self.split(query), self.split(key))


class Probabilities(nn.Module):
    """Softmax over unmasked keys, 0 at masked keys: (B, h, S, S) scores, (B, S) mask -> (B, h, S, S)."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return the probabilities; masked keys have the smallest number of the format as score, so that exp is 0."""
        return torch.softmax(hidden_keys(scores, mask[:, None, None, :] == 1), -1)


def hidden_keys(scores: Tensor, keep: Tensor) -> Tensor:
    """Return the scores, with the smallest number of the format where `keep` is False."""
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)


class Context(nn.Module):
    """probs · v for each head, with heads concatenated: (B, h, S, S), (B, S, H) -> (B, S, H)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def split(self, x: Tensor) -> Tensor:
        """Split the heads: (B, S, H) -> (B, h, S, d)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def product(self, probs: Tensor, value: Tensor) -> Tensor:
        """Return the context of split heads: (B, h, S, S), (B, h, S, d) -> (B, h, S, d)."""
        return probs @ value

    def merge(self, x: Tensor) -> Tensor:
        """Concatenate the heads: (B, h, S, d) -> (B, S, H)."""
        return x.transpose(1, 2).flatten(2)

    def forward(self, probs: Tensor, value: Tensor) -> Tensor:
        """Return the context: split values, multiplied by the probabilities, and merged."""
        return self.merge(self.product(probs, self.split(value)))


class Pointwise(nn.Module):
    """A function applied to every element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the function of x."""
        return self.function(x)


def erf_gelu(x: Tensor) -> Tensor:
    """Return x/2 · (1 + erf(x/√2))."""
    return F.gelu(x)


def tanh_gelu(x: Tensor) -> Tensor:
    """Return x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": erf_gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "relu": torch.relu,
}


class LogSoftmax(nn.Module):
    """Log-softmax over the last axis."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities."""
        return torch.log_softmax(logits, -1)


class Loss(nn.Module):
    """The mean cross entropy over labelled rows: (…, C) logits, (…) labels -> ()."""

    reduction = "mean"

    def labels(self, labels: Tensor) -> Tensor:
        """Return the classes that the labels denote."""
        return labels

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss of concatenated rows."""
        return F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction=self.reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, with all rows concatenated."""
        return self.each(logits.flatten(0, -2), self.labels(labels).flatten())


class ChoiceLoss(Loss):
    """The mean cross entropy over the choices of questions: (B, 1) logits, (Q,) labels -> ()."""

    def questions(self, logits: Tensor, count: int) -> Tensor:
        """Return the logits of each question's choices, (Q, B / Q)."""
        return logits.view(count, -1)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, with one row per question."""
        return self.each(self.questions(logits, len(labels)), labels)


class LogProbsLoss(Loss):
    """The mean negative log-likelihood over labelled rows: (…, C) log-probabilities, (…) labels -> ()."""

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss of concatenated rows."""
        return F.nll_loss(logits, labels, ignore_index=IGNORED_LABEL, reduction=self.reduction)


def labelled(labels: Tensor | None) -> bool:
    """Return whether there is any label to compute a loss from."""
    return labels is not None and bool((labels != IGNORED_LABEL).any())
