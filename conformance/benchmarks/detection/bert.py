"""A BERT from scratch whose module tree is the table of activations, so that a mistake is planted by hand in a real module.

The module at `encoder.layer.0.attention.self.scores` computes the activation of that name. A mistake is a submodule replaced, a
method of one overridden, or parameters exchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from conformance.benchmarks.detection.heads import Classifier, Pooled, Pooler, PretrainingHeads, SentenceEmbedding, Spans
from conformance.benchmarks.detection.steps import (
    ACTIVATIONS,
    ChoiceLoss,
    Context,
    Inputs,
    LayerNorm,
    Linear,
    Pointwise,
    PositionLookup,
    Probabilities,
    Scores,
    SinusoidLookup,
    Sum,
    TokenTypeLookup,
    WordLookup,
    labelled,
)
from conformance.model.activations import table
from conformance.model.architecture import Architecture
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint

DROPOUT = 0.1  # inactive: the model is only ever evaluated


class Embeddings(nn.Module):
    """Word, token type and position, summed and, in most architectures, normalised: (B, S, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        positions = SinusoidLookup if a.position_embedding_type == "sinusoidal" else PositionLookup
        self.word_embeddings = WordLookup(a.vocab_size, a.hidden_size)
        self.position_embeddings = positions(a.max_position_embeddings, a.hidden_size)
        self.position_embeddings.first = a.position_offset
        self.token_type_embeddings = TokenTypeLookup(a.type_vocab_size, a.hidden_size)
        if a.embedding_norm:
            self.LayerNorm = LayerNorm(a.hidden_size, a.layer_norm_eps)
        else:
            self.sum = Sum()
        self.dropout = nn.Dropout(DROPOUT)

    @property
    def last(self) -> Sum:
        """The step that sums."""
        return self.LayerNorm if hasattr(self, "LayerNorm") else self.sum

    def forward(self, inputs: Inputs) -> Tensor:
        """The three looked up, and summed."""
        word, position = self.word_embeddings(inputs), self.position_embeddings(inputs)
        x: Tensor = self.dropout(self.last(word, self.token_type_embeddings(inputs), position))
        return x


class SelfAttention(nn.Module):
    """softmax(q kᵀ / √d) v: (B, S, H), (B, S) mask -> (B, S, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.query = Linear(a.hidden_size, a.hidden_size)
        self.key = Linear(a.hidden_size, a.hidden_size)
        self.value = Linear(a.hidden_size, a.hidden_size)
        self.scores = Scores(a.num_attention_heads, a.hidden_size)
        self.probs = Probabilities()
        self.dropout = nn.Dropout(DROPOUT)
        self.context = Context(a.num_attention_heads)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """All heads at once."""
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        probs = self.dropout(self.probs(self.scores(query, key), mask))
        context: Tensor = self.context(probs, value)
        return context


class Output(nn.Module):
    """A projection and its residual: LayerNorm(W x + b + skip)."""

    def __init__(self, a: Architecture, inputs: int) -> None:
        super().__init__()
        self.dense = Linear(inputs, a.hidden_size)
        self.dropout = nn.Dropout(DROPOUT)
        self.LayerNorm = LayerNorm(a.hidden_size, a.layer_norm_eps)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Projected, dropped out, added, normalised."""
        x = self.LayerNorm(self.dropout(self.dense(x)), skip)
        return x


class Attention(nn.Module):
    """Self-attention and its residual."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.self = SelfAttention(a)
        self.output = Output(a, a.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The residual is that of the layer's input."""
        hidden = self.output(self.self(hidden, mask), hidden)
        return hidden


class Intermediate(nn.Module):
    """f(W x + b), wider: (B, S, H) -> (B, S, I)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.dense = Linear(a.hidden_size, a.intermediate_size)
        self.intermediate_act_fn = Pointwise(ACTIVATIONS[a.hidden_act])

    def forward(self, x: Tensor) -> Tensor:
        """Projected, then the activation function."""
        x = self.intermediate_act_fn(self.dense(x))
        return x


class Layer(nn.Module):
    """Attention and feed-forward: (B, S, H), (B, S) mask -> (B, S, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.attention = Attention(a)
        self.intermediate = Intermediate(a)
        self.output = Output(a, a.intermediate_size)
        if a.shared_layer_norm:
            shared, second = self.attention.output.LayerNorm, self.output.LayerNorm
            second.weight, second.bias = shared.weight, shared.bias

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The second residual is that of the attention's output."""
        middle = self.attention(hidden, mask)
        hidden = self.output(self.intermediate(middle), middle)
        return hidden


class Encoder(nn.Module):
    """The layers, in turn."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(a) for _ in range(a.num_hidden_layers))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Each layer reads the one before it."""
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return hidden


class Bert(nn.Module):
    """The whole of an architecture, with every head that it names; parameters are to be loaded."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.architecture = a
        self.embeddings = Embeddings(a)
        self.encoder = Encoder(a)
        self.pooler = Pooler(a) if a.pooler else None
        self.cls = PretrainingHeads(a, self.embeddings.word_embeddings)
        classified = {"classification", "token_classification"} & set(a.heads)
        self.classifier = Classifier(a.hidden_size, a.num_labels) if classified else None
        if "multiple_choice" in a.heads:
            self.classifier = Classifier(a.hidden_size, 1, ChoiceLoss())
        self.qa_outputs = Spans(a.hidden_size) if "question_answering" in a.heads else None

        self.sentence_embedding: SentenceEmbedding | Pooled | None = None
        if a.pooling:
            self.sentence_embedding = SentenceEmbedding(a) if a.normalize else Pooled(a)

    def layer(self, index: int) -> Layer:
        """Encoder layer `index`."""
        found = self.encoder.layer[index]
        assert isinstance(found, Layer)
        return found

    def forward(self, batch: TorchBatch) -> None:
        """Everything; what is computed is seen by whoever listens to the modules (`recording`)."""
        inputs = Inputs.of(batch)
        hidden = self.encoder(self.embeddings(inputs), inputs.mask)
        pooled = self.pooler(hidden, inputs.mask) if self.pooler else None
        self.cls(hidden, pooled, inputs)
        if self.classifier:
            of_tokens = "token_classification" in self.architecture.heads
            logits = self.classifier(hidden if of_tokens else pooled)
            labels = inputs.token_labels if of_tokens else inputs.class_labels
            if "multiple_choice" in self.architecture.heads:
                labels = inputs.choice_labels
            if labelled(labels):
                self.classifier.loss(logits, labels)
        if self.sentence_embedding:
            self.sentence_embedding(hidden, inputs.mask)
        if self.qa_outputs:
            self.qa_outputs.losses(self.qa_outputs(hidden), inputs)

    def load(self, weights: dict[str, Tensor]) -> None:
        """Parameters by Hugging Face's names; one that is used twice stands here once."""
        for name, parameter in self.named_parameters():
            parameter.copy_(weights[stored_name(name)])


def stored_name(name: str) -> str:
    """Hugging Face's name of a parameter of `Bert`."""
    if name == "cls.predictions.decoder.bias":
        return "cls.predictions.bias"
    return name if name.startswith(("cls.", "classifier.", "qa_outputs.")) else f"bert.{name}"


def recording(model: Bert) -> dict[str, Tensor]:
    """What the modules of the table's names make from now on, in that order; the latest where one is called twice."""
    found: dict[str, Tensor] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in table(model.architecture):
        if name in modules:
            modules[name].register_forward_hook(_keeper(found, name))
    return found


def _keeper(found: dict[str, Tensor], name: str) -> Callable[[nn.Module, object, Tensor], None]:
    def keep(_: nn.Module, inputs: object, made: Tensor) -> None:
        found[name] = made

    return keep


def _everything(name: str) -> bool:
    return True


@dataclass(frozen=True)
class Candidate:
    """The implementation.

    Attributes:
        plants: what is changed in the module once its parameters are loaded, in this order.
        exposes: which activations are shown.
        computes: another dtype to compute in; what is shown is rounded to the one asked for.
    """

    plants: Sequence[Callable[[Bert], None]] = ()
    exposes: Callable[[str], bool] = _everything
    computes: str | None = None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """The module with its parameters as `dtype` holds them, changed, and listened to."""
        return self.runner(self.build(checkpoint, device, dtype), dtype)

    def runner(self, model: Bert, dtype: str) -> Callable[[TorchBatch], dict[str, Tensor]]:
        """Runs the module and hands on what its steps make."""
        found = recording(model)

        def run(batch: TorchBatch) -> dict[str, Tensor]:
            found.clear()
            with torch.no_grad():
                model(batch)
            return {name: made.to(getattr(torch, dtype)) for name, made in found.items() if self.exposes(name)}

        return run

    def build(self, checkpoint: Checkpoint, device: str, dtype: str) -> Bert:
        """The module, changed."""
        model = Bert(checkpoint.architecture).to(device, getattr(torch, self.computes or dtype)).requires_grad_(False).eval()
        model.load(checkpoint.state_dict(dtype, device))
        for plant in self.plants:
            plant(model)
        return model
