"""*Bert Inner Workings*: Hugging Face's BertForSequenceClassification down to its last tensor, written anew.

Read from the top: each component is made of those before it and can be used by itself. Components and parameters are called what
Hugging Face calls them, so its state dict loads as it is. Every tensor reports its shape as it is computed, to a listener:

    with shape_log(print):
        BertLayer(BertConfig())(torch.rand(2, 9, 768))
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple
from warnings import warn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import Architecture, Tap, TorchBatch, TorchImplementation
from implementations.initialization import initialized
from implementations.wordpiece import tokenizer

Listener = Callable[[str, tuple[int, ...]], object]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def shape_log(listener: Listener) -> Iterator[None]:
    """Inside, `listener(what, shape)` is called for every tensor of every forward pass, in the order of computation."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def __getattr__(name: str) -> Any:
    """`telling` is the former name of `shape_log`, kept for one release."""
    if name == "telling":
        warn("implementations.inner_workings.telling is now shape_log", DeprecationWarning, stacklevel=2)
        return shape_log
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def reported(what: str, x: Tensor) -> Tensor:
    """`x`, after its shape was reported to the listener, if there is one."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        listener = _listener.get()
        if listener is not None:
            listener(what, tuple(x.shape))
    return x


@dataclass(frozen=True)
class BertConfig:
    """The sizes of bert-base-cased, under Hugging Face's names."""

    vocab_size: int = 28996
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    chunk_size_feed_forward: int = 0
    num_labels: int = 2
    classifier_dropout: float | None = None
    position_offset: int = 0


ACTIVATION_FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU("tanh"),
    "gelu_pytorch_tanh": lambda: nn.GELU("tanh"),
    "relu": nn.ReLU,
}


class BertEmbeddings(nn.Module):
    """LayerNorm(word + token type + position), then dropout: (B, S) ids, (B, S) token types -> (B, S, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.first_position = config.position_offset
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None] + self.first_position
        reported("position ids", positions)  # (1, S)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        reported("token ids", input_ids)  # (B, S)
        reported("token type ids", token_type_ids)  # (B, S)
        words = reported("word embeddings", self.word_embeddings(input_ids))  # (B, S, H)
        places = reported("position embeddings", self.position_embeddings(positions))  # (1, S, H)
        types = reported("token type embeddings", self.token_type_embeddings(token_type_ids))  # (B, S, H)
        hidden = reported("sum of embeddings", words + types + places)  # (B, S, H)
        hidden = reported("embeddings, normalised", self.LayerNorm(hidden))
        return reported("embeddings, dropout", self.dropout(hidden))


class BertSelfAttention(nn.Module):
    """softmax(q kᵀ / √d + mask) v, a head at a time, the heads side by side: (B, S, H) -> (B, S, H).

    `attention_mask` is added to the scores: 0 where a key may be attended to, the lowest number of the format elsewhere.
    `head_mask` multiplies the probabilities: (h, 1, 1), 0 for a head that is left out.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None) -> Tensor:
        reported("hidden states", hidden)  # (B, S, H)
        query = reported("query, linear", self.query(hidden))  # (B, S, H)
        key = reported("key, linear", self.key(hidden))  # (B, S, H)
        value = reported("value, linear", self.value(hidden))  # (B, S, H)
        query = reported("query", self.by_head(query))  # (B, h, S, d)
        key = reported("key", self.by_head(key))  # (B, h, S, d)
        value = reported("value", self.by_head(value))  # (B, h, S, d)
        key = reported("key, transposed", key.transpose(-1, -2))  # (B, h, d, S)
        scores = reported("attention scores", query @ key)  # (B, h, S, S)
        scores = reported("attention scores, scaled", scores / math.sqrt(query.shape[-1]))
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = reported("attention probabilities", scores.softmax(-1))  # (B, h, S, S)
        probs = reported("attention probabilities, dropout", self.dropout(probs))
        if head_mask is not None:
            probs = probs * head_mask
        context = reported("context", probs @ value)  # (B, h, S, d)
        context = reported("context, heads side by side", context.permute(0, 2, 1, 3))  # (B, S, h, d)
        return reported("context, merged", context.flatten(2))  # (B, S, H)

    def by_head(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, h, S, d)."""
        return x.unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)


class BertSelfOutput(nn.Module):
    """LayerNorm(skip + dropout(W x + b)): (B, S, H), (B, S, H) -> (B, S, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, skip: Tensor) -> Tensor:
        reported("hidden states", hidden)
        hidden = reported("attention output, linear", self.dense(hidden))
        hidden = reported("attention output, dropout", self.dropout(hidden))
        return reported("attention output, normalised", self.LayerNorm(hidden + skip))


class BertAttention(nn.Module):
    """Self-attention and its output: (B, S, H) -> (B, S, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertSelfOutput(config)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None) -> Tensor:
        return self.output(self.self(hidden, attention_mask, head_mask), hidden)


class BertIntermediate(nn.Module):
    """GELU(W x + b): (B, S, H) -> (B, S, I)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = ACTIVATION_FUNCTIONS[config.hidden_act]()

    def forward(self, hidden: Tensor) -> Tensor:
        reported("hidden states", hidden)
        hidden = reported("intermediate, linear", self.dense(hidden))  # (B, S, I)
        return reported("intermediate, activation", self.intermediate_act_fn(hidden))


class BertOutput(nn.Module):
    """LayerNorm(skip + dropout(W x + b)): (B, S, I), (B, S, H) -> (B, S, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, skip: Tensor) -> Tensor:
        reported("hidden states", hidden)  # (B, S, I)
        hidden = reported("output, linear", self.dense(hidden))  # (B, S, H)
        hidden = reported("output, dropout", self.dropout(hidden))
        return reported("output, normalised", self.LayerNorm(hidden + skip))


class BertLayer(nn.Module):
    """Attention, then the feed-forward network, over all positions at once or in chunks of them: (B, S, H) -> (B, S, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.chunk = config.chunk_size_feed_forward
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None) -> Tensor:
        attended = self.attention(hidden, attention_mask, head_mask)  # (B, S, H)
        if self.chunk == 0:
            return self.feed_forward(attended)
        return torch.cat([self.feed_forward(part) for part in attended.split(self.chunk, 1)], 1)

    def feed_forward(self, attended: Tensor) -> Tensor:
        """(B, any, H) -> (B, any, H): positions do not see each other here."""
        return self.output(self.intermediate(attended), attended)


class BertEncoder(nn.Module):
    """Layer after layer: (B, S, H) -> (B, S, H); `head_mask` is (L, h, 1, 1)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None) -> Tensor:
        for i, layer in enumerate(self.layer):
            hidden = layer(hidden, attention_mask, None if head_mask is None else head_mask[i])
        return hidden


class BertPooler(nn.Module):
    """tanh(W x₀ + b), x₀ the first token's: (B, S, H) -> (B, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden: Tensor) -> Tensor:
        reported("hidden states", hidden)
        first = reported("first token", hidden[:, 0])  # (B, H)
        pooled = reported("first token, linear", self.dense(first))
        return reported("first token, tanh", self.activation(pooled))


class BertModel(nn.Module):
    """Embeddings, encoder, pooler: (B, S) ids -> (B, S, H) and, where there is a pooler, (B, H).

    Args of the forward pass:
        attention_mask: (B, S), 1 for the tokens that may be attended to; None: all.
        token_type_ids: (B, S); None: zeros.
        head_mask: (L, h) or, for every layer, (h,): 1 for the heads that are kept; None: all.
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        hidden = self.embeddings(input_ids, token_type_ids)  # (B, S, H)
        if attention_mask is not None:
            lowest = hidden.new_full((), -math.inf).nan_to_num()  # the lowest finite number of the format
            attention_mask = torch.where(attention_mask[:, None, None, :] == 0, lowest, torch.zeros_like(lowest))  # (B, 1, 1, S)
        if head_mask is not None:
            head_mask = head_mask.to(hidden.dtype).expand(len(self.encoder.layer), -1)[:, :, None, None]  # (L, h, 1, 1)
        hidden = self.encoder(hidden, attention_mask, head_mask)  # (B, S, H)
        return hidden, None if self.pooler is None else self.pooler(hidden)


class Classified(NamedTuple):
    """What a classification gives: a loss where there are labels, and (B, labels) logits."""

    loss: Tensor | None
    logits: Tensor


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """What the labels ask for: (B, labels) and labels -> a scalar.

    One label: regression, the mean square error of (B,) numbers. Several, and integers (B,): single-label, the cross entropy, −100
    for a row without a label. Several, and numbers (B, labels): multi-label, the binary cross entropy of each.
    """
    if logits.shape[-1] == 1:
        return F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype).view(-1))
    if labels.is_floating_point():
        return F.binary_cross_entropy_with_logits(logits, labels)
    return F.cross_entropy(logits, labels)


class BertForSequenceClassification(nn.Module):
    """BertModel with a linear layer on its pooled output: (B, S) ids -> (B, labels) logits, and a loss where there are labels."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        own = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if own is None else own)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None, labels: Tensor | None = None,
    ) -> Classified:  # fmt: skip
        _, pooled = self.bert(input_ids, attention_mask, token_type_ids, head_mask)  # (B, H)
        assert pooled is not None
        pooled = reported("pooled, dropout", self.dropout(pooled))
        logits = reported("logits", self.classifier(pooled))  # (B, labels)
        return Classified(None if labels is None else reported("loss", classification_loss(logits, labels)), logits)


class TokenLogits(NamedTuple):
    """What heads give that read every position: (B, S, labels) of classes, (B, S, 2) of the starts and ends of a span."""

    classes: Tensor | None
    spans: Tensor | None


class BertForTokens(nn.Module):
    """BertModel with linear layers on every position: Hugging Face's BertForTokenClassification, BertForQuestionAnswering, or both.

    Args:
        classes: whether there is a classifier of tokens, behind a dropout.
        spans: whether there are logits of where a span starts and where it ends.
    """

    def __init__(self, config: BertConfig, classes: bool, spans: bool, add_pooling_layer: bool = False) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer)
        own = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if own is None else own)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels) if classes else None
        self.qa_outputs = nn.Linear(config.hidden_size, 2) if spans else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None) -> TokenLogits:
        hidden, _ = self.bert(input_ids, attention_mask, token_type_ids)  # (B, S, H)
        classes = None if self.classifier is None else reported("logits", self.classifier(self.dropout(hidden)))
        spans = None if self.qa_outputs is None else reported("start and end logits", self.qa_outputs(hidden))
        return TokenLogits(classes, spans)


class Bare(nn.Module):
    """BertModel alone, under the name that it has in a larger model."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return self.bert(input_ids, attention_mask, token_type_ids)


# As a candidate: built for an architecture, its parameters and activations under Hugging Face's names already.


def build(a: Architecture) -> nn.Module:
    """With the heads that the checkpoint has, of classification, token classification, question answering and multiple choice."""
    config = BertConfig(
        a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size, a.hidden_act,
        a.hidden_dropout_prob, a.attention_probs_dropout_prob, classifier_dropout=a.classifier_dropout,
        max_position_embeddings=a.max_position_embeddings, type_vocab_size=a.type_vocab_size, layer_norm_eps=a.layer_norm_eps,
        num_labels=1 if "multiple_choice" in a.heads else a.num_labels, position_offset=a.position_offset,
    )  # fmt: skip
    if {"classification", "multiple_choice"} & set(a.heads):
        return BertForSequenceClassification(config)
    classes, spans = "token_classification" in a.heads, "question_answering" in a.heads
    if classes or spans:
        return BertForTokens(config, classes, spans, a.pooler)
    return Bare(config, a.pooler)


def untrained(a: Architecture) -> nn.Module:
    """The same as training starts from it."""
    return initialized(build(a), a.initializer_range)


def call(model: Any, batch: TorchBatch) -> dict[str, Tensor]:
    """The classification, of sequences, tokens or choices, and its loss, or the model alone."""
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    if isinstance(model, BertForTokens):
        return token_losses(model(*inputs), batch)
    if isinstance(model, Bare):
        model(*inputs)
        return {}
    if model.classifier.out_features == 1:  # one choice a row
        labels, logits = batch.choice_labels, model(*inputs).logits
        return {} if labels is None else real({"classifier.loss": F.cross_entropy(logits.view(len(labels), -1), labels)})
    loss, _ = model(*inputs, labels=batch.class_labels)
    return {} if loss is None else real({"classifier.loss": loss})


def real(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that are numbers: a mean over no label at all is NaN."""
    return {name: loss for name, loss in losses.items() if not loss.isnan()}


def token_losses(logits: TokenLogits, batch: TorchBatch) -> dict[str, Tensor]:
    """The losses of the labels that there are: the classes' cross entropy, that of start and of end, and the mean of these two."""
    losses: dict[str, Tensor] = {}
    if logits.classes is not None and batch.token_labels is not None:
        losses["classifier.loss"] = F.cross_entropy(logits.classes.flatten(0, 1), batch.token_labels.flatten())
    if logits.spans is not None and batch.start_positions is not None and batch.end_positions is not None:
        start, end = logits.spans.unbind(-1)  # (B, S)
        losses["qa_outputs.start_loss"] = F.cross_entropy(start, batch.start_positions)
        losses["qa_outputs.end_loss"] = F.cross_entropy(end, batch.end_positions)
        losses["qa_outputs.loss"] = (losses["qa_outputs.start_loss"] + losses["qa_outputs.end_loss"]) / 2
    return real(losses)


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Why not, where it cannot be of this architecture."""
    if {"classification", "question_answering"} <= set(a.heads):
        return "the walk's Bert classifies sequences, or answers questions, and not both"
    if a.position_embedding_type != "absolute" or not a.embedding_norm or a.shared_layer_norm:
        return "the walk's Bert has learned positions, and a norm at the embeddings and at each residual"
    return None


_LAYER = "encoder.layer.{layer}"
_MODULES = (
    "embeddings.LayerNorm",
    *(f"{_LAYER}.attention.self.{part}" for part in ("query", "key", "value")),
    *(f"{_LAYER}.{part}" for part in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense")),
    *(f"{_LAYER}.{part}" for part in ("output.dense", "output.LayerNorm")),
    "pooler.dense",
)
_TABLES = tuple(f"embeddings.{table}_embeddings" for table in ("word", "position", "token_type"))
_WITHOUT_PARAMETERS = (
    "embeddings.dropout", f"{_LAYER}.attention.self.dropout", f"{_LAYER}.attention.output.dropout",
    f"{_LAYER}.intermediate.intermediate_act_fn", f"{_LAYER}.output.dropout", "pooler.activation",
)  # fmt: skip

PARAMETERS = {f"bert.{table}.weight": f"bert.{table}.weight" for table in _TABLES} | {
    f"{module}.{part}": f"{module}.{part}"
    for module in (*(f"bert.{m}" for m in _MODULES), "classifier", "qa_outputs")
    for part in ("weight", "bias")
}

ACTIVATIONS: dict[str | Tap, str] = {
    **{f"bert.{name}": name for name in (*_TABLES, *_MODULES, *_WITHOUT_PARAMETERS)},
    Tap(f"bert.{_LAYER}.attention.self.dropout", "input"): f"{_LAYER}.attention.self.probs",
    f"bert.{_LAYER}.attention.self": f"{_LAYER}.attention.self.context",
    "dropout": "dropout",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}

inner_workings = TorchImplementation(
    build=build,
    parameters=PARAMETERS,
    activations=ACTIVATIONS,
    call=call,
    untrained=untrained,
    unused=("cls.*",),
    supported=supported,
    name="inner-workings",
    tokenizer=tokenizer,
)
