"""The steps of a BERT, one small module each: what it computes can be replaced a method, a parameter or a module at a time."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance.model.batch import IGNORED_LABEL, TorchBatch


@dataclass(frozen=True)
class Inputs:
    """A batch with what may be omitted filled in; labels that are absent are None."""

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
        """Token types of 0 and a mask of 1 where there are none."""
        full = batch.filled()
        assert full.token_type_ids is not None
        assert full.attention_mask is not None
        return cls(
            *(full.input_ids, full.token_type_ids, full.attention_mask, full.labels, full.next_sentence_label, full.class_labels),
            *(full.token_labels, full.start_positions, full.end_positions, full.choice_labels),
        )


class WordLookup(nn.Module):
    """The word table's rows of the ids: (B, S, H)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(rows, width))

    def rows(self, inputs: Inputs) -> Tensor:
        """Which rows are read."""
        return inputs.ids

    def forward(self, inputs: Inputs) -> Tensor:
        """E[ids]; an id that is not in the table raises, a negative one among them."""
        return F.embedding(self.rows(inputs), self.weight)


class TokenTypeLookup(WordLookup):
    """The token-type table's rows of the token types: (B, S, H)."""

    def rows(self, inputs: Inputs) -> Tensor:
        """Which rows are read."""
        return inputs.types


class PositionLookup(WordLookup):
    """The position table's rows `first`, `first` + 1, …, the same for every sequence: (1, S, H)."""

    first = 0

    def rows(self, inputs: Inputs) -> Tensor:
        """Which rows are read."""
        return torch.arange(inputs.ids.shape[1], device=inputs.ids.device)[None] + self.first


class SinusoidLookup(PositionLookup):
    """The same of a table that is computed and has no parameters."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        del self.weight
        self.register_buffer("weight", sinusoids(rows, width))


def sinusoids(rows: int, width: int) -> Tensor:
    """PE[s, 2i] = sin(s / 10000^(2i/H)), PE[s, 2i + 1] = cos(s / 10000^(2i/H)), in float64."""
    feature = torch.arange(width)
    rate = 10000.0 ** (-2.0 * (feature // 2).double() / width)
    angles = torch.arange(rows).double()[:, None] * rate
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos())


class Sum(nn.Module):
    """The sum of its inputs."""

    def add(self, *parts: Tensor) -> Tensor:
        """Left to right."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def forward(self, *parts: Tensor) -> Tensor:
        """The sum."""
        return self.add(*parts)


class LayerNorm(Sum):
    """LayerNorm of the sum of its inputs: of a residual, of the three embeddings, or of one tensor."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(width))
        self.bias: Tensor = nn.Parameter(torch.empty(width))
        self.eps = eps

    def normalise(self, x: Tensor) -> Tensor:
        """(x − μ) / √(σ² + ε) · γ + β."""
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)

    def forward(self, *parts: Tensor) -> Tensor:
        """Of the sum."""
        return self.normalise(self.add(*parts))


class Linear(nn.Module):
    """x Wᵀ + b: (…, inputs) -> (…, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight: Tensor = nn.Parameter(torch.empty(outputs, inputs))
        self.bias: Tensor = nn.Parameter(torch.empty(outputs))

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return self.product(x)


class SentenceLinear(Linear):
    """W x₀ + b, x₀ the first token: (B, S, H) -> (B, outputs)."""

    def sentence(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What stands for the sentence; the mask is for those who read something else."""
        return hidden[:, 0]

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]  # the sentence first
        """The product."""
        return self.product(self.sentence(hidden, mask))


class Scores(nn.Module):
    """q kᵀ / √d a head: (B, S, H), (B, S, H) -> (B, h, S, S)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.root = math.sqrt(width // heads)

    def split(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, h, S, d)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def product(self, query: Tensor, key: Tensor) -> Tensor:
        """Of heads that are split: (B, h, S, d), (B, h, S, d) -> (B, h, S, S)."""
        return query @ key.transpose(-1, -2) / self.root

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Split, then multiplied."""
        return self.product(self.split(query), self.split(key))


class Probabilities(nn.Module):
    """softmax over unmasked keys, 0 elsewhere: (B, h, S, S) scores, (B, S) mask -> (B, h, S, S)."""

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Masked keys get the least number of the format, of which exp is 0."""
        return torch.softmax(hidden_keys(scores, mask[:, None, None, :] == 1), -1)


def hidden_keys(scores: Tensor, keep: Tensor) -> Tensor:
    """The scores, with the least number of the format where `keep` is False."""
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)


class Context(nn.Module):
    """probs · v, the heads side by side: (B, h, S, S), (B, S, H) -> (B, S, H)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def split(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, h, S, d)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def product(self, probs: Tensor, value: Tensor) -> Tensor:
        """Of heads that are split: (B, h, S, S), (B, h, S, d) -> (B, h, S, d)."""
        return probs @ value

    def merge(self, x: Tensor) -> Tensor:
        """(B, h, S, d) -> (B, S, H)."""
        return x.transpose(1, 2).flatten(2)

    def forward(self, probs: Tensor, value: Tensor) -> Tensor:
        """Split, multiplied, merged."""
        return self.merge(self.product(probs, self.split(value)))


class Pointwise(nn.Module):
    """A function of every element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """The function."""
        return self.function(x)


def erf_gelu(x: Tensor) -> Tensor:
    """x/2 · (1 + erf(x/√2))."""
    return F.gelu(x)


def tanh_gelu(x: Tensor) -> Tensor:
    """x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": erf_gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "relu": torch.relu,
}


class LogSoftmax(nn.Module):
    """log softmax over the last axis."""

    def forward(self, logits: Tensor) -> Tensor:
        """The logarithms."""
        return torch.log_softmax(logits, -1)


class Loss(nn.Module):
    """Mean cross entropy of the labelled rows: (…, C) logits, (…) labels -> ()."""

    reduction = "mean"

    def labels(self, labels: Tensor) -> Tensor:
        """The classes that the labels stand for."""
        return labels

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of rows put end to end, reduced."""
        return F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction=self.reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Rows put end to end."""
        return self.each(logits.flatten(0, -2), self.labels(labels).flatten())


class ChoiceLoss(Loss):
    """The same of the choices of questions: (B, 1) logits and (Q,) labels."""

    def questions(self, logits: Tensor, count: int) -> Tensor:
        """The logits of each question's choices: (Q, B / Q)."""
        return logits.view(count, -1)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """A row a question."""
        return self.each(self.questions(logits, len(labels)), labels)


class LogProbsLoss(Loss):
    """The same of log-probabilities: mean negative log-likelihood."""

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of rows put end to end, reduced."""
        return F.nll_loss(logits, labels, ignore_index=IGNORED_LABEL, reduction=self.reduction)


def labelled(labels: Tensor | None) -> bool:
    """Whether there is anything to take a loss of."""
    return labels is not None and bool((labels != IGNORED_LABEL).any())
