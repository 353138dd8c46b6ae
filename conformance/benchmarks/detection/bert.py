"""A BERT written from scratch, whose module tree is the table of activations, so that mistakes can be planted in real modules.

The module at `encoder.layer.0.attention.self.scores` computes the activation of that name. A mistake is a replaced submodule, an
overridden method of a module, or exchanged parameters.
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

DROPOUT = 0.1  # Inactive: the model only runs in eval mode.


class Embeddings(nn.Module):
    """The sum of word, token type and position embeddings, normalized in most architectures: (B, S, H)."""

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
        """The module that computes the sum: the norm if there is one."""
        return self.LayerNorm if hasattr(self, "LayerNorm") else self.sum

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the sum of the three embeddings, normalized if the architecture has a norm."""
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
        """Return the context of all heads, (B, S, H)."""
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        probs = self.dropout(self.probs(self.scores(query, key), mask))
        context: Tensor = self.context(probs, value)
        return context


class Output(nn.Module):
    """A projection with its residual: LayerNorm(W x + b + skip)."""

    def __init__(self, a: Architecture, inputs: int) -> None:
        super().__init__()
        self.dense = Linear(inputs, a.hidden_size)
        self.dropout = nn.Dropout(DROPOUT)
        self.LayerNorm = LayerNorm(a.hidden_size, a.layer_norm_eps)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return LayerNorm(dropout(W x + b) + skip)."""
        x = self.LayerNorm(self.dropout(self.dense(x)), skip)
        return x


class Attention(nn.Module):
    """Self-attention with its residual."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.self = SelfAttention(a)
        self.output = Output(a, a.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output; the residual is the layer's input."""
        hidden = self.output(self.self(hidden, mask), hidden)
        return hidden


class Intermediate(nn.Module):
    """The intermediate projection f(W x + b): (B, S, H) -> (B, S, I)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.dense = Linear(a.hidden_size, a.intermediate_size)
        self.intermediate_act_fn = Pointwise(ACTIVATIONS[a.hidden_act])

    def forward(self, x: Tensor) -> Tensor:
        """Return f(W x + b)."""
        x = self.intermediate_act_fn(self.dense(x))
        return x


class Layer(nn.Module):
    """A layer of attention and feed-forward network: (B, S, H), (B, S) mask -> (B, S, H)."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.attention = Attention(a)
        self.intermediate = Intermediate(a)
        self.output = Output(a, a.intermediate_size)
        if a.shared_layer_norm:
            shared, second = self.attention.output.LayerNorm, self.output.LayerNorm
            second.weight, second.bias = shared.weight, shared.bias

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's output; the second residual is the attention output."""
        middle = self.attention(hidden, mask)
        hidden = self.output(self.intermediate(middle), middle)
        return hidden


class Encoder(nn.Module):
    """The encoder layers, applied in order."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(a) for _ in range(a.num_hidden_layers))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the last hidden state, (B, S, H)."""
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return hidden


class Bert(nn.Module):
    """A complete model of an architecture, with all its heads; parameters must be loaded."""

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
        """Return encoder layer `index`."""
        found = self.encoder.layer[index]
        assert isinstance(found, Layer)
        return found

    def forward(self, batch: TorchBatch) -> None:
        """Compute all activations; values are read by hooks on the modules (`recording`), and nothing is returned."""
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
        """Load parameters by Hugging Face's names; a parameter that is used twice is loaded once."""
        for name, parameter in self.named_parameters():
            parameter.copy_(weights[stored_name(name)])


def stored_name(name: str) -> str:
    """Return Hugging Face's name of a parameter of `Bert`."""
    if name == "cls.predictions.decoder.bias":
        return "cls.predictions.bias"
    return name if name.startswith(("cls.", "classifier.", "qa_outputs.")) else f"bert.{name}"


def recording(model: Bert) -> dict[str, Tensor]:
    """Return a dictionary that hooks fill with the outputs of the modules in the table, in call order.

    If a module is called twice, its latest output is kept.
    """
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
    """A candidate implementation, with planted changes.

    Attributes:
        plants: changes to the module after its parameters are loaded, in this order.
        exposes: whether an activation of the given name is shown.
        computes: another dtype to compute in; shown values are rounded to the requested dtype.
    """

    plants: Sequence[Callable[[Bert], None]] = ()
    exposes: Callable[[str], bool] = _everything
    computes: str | None = None

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Callable[[TorchBatch], Mapping[str, Tensor]]:
        """Return a runner of the changed module, whose parameters are rounded to `dtype`."""
        return self.runner(self.build(checkpoint, device, dtype), dtype)

    def runner(self, model: Bert, dtype: str) -> Callable[[TorchBatch], dict[str, Tensor]]:
        """Return a runner that calls the module and returns the exposed outputs of its steps."""
        found = recording(model)

        def run(batch: TorchBatch) -> dict[str, Tensor]:
            found.clear()
            with torch.no_grad():
                model(batch)
            return {name: made.to(getattr(torch, dtype)) for name, made in found.items() if self.exposes(name)}

        return run

    def build(self, checkpoint: Checkpoint, device: str, dtype: str) -> Bert:
        """Return the module, changed, with the parameters of the checkpoint."""
        model = Bert(checkpoint.architecture).to(device, getattr(torch, self.computes or dtype)).requires_grad_(False).eval()
        model.load(checkpoint.state_dict(dtype, device))
        for plant in self.plants:
            plant(model)
        return model
