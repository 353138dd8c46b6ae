"""The walk's network as a candidate: its parameters and activations are under Hugging Face's names already."""

from torch import Tensor, nn

from conformance import Architecture, Tap, TorchBatch, TorchImplementation
from implementations.initialization import initialized
from implementations.inner_workings.classification import BertForSequenceClassification
from implementations.inner_workings.config import BertConfig
from implementations.inner_workings.model import BertModel
from implementations.wordpiece import tokenizer


class Bare(nn.Module):
    """BertModel alone, under the name that it has in a larger model."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        output = self.bert(input_ids, attention_mask, token_type_ids)
        return output.last_hidden_state, output.pooler_output


def config_of(a: Architecture) -> BertConfig:
    """The configuration for an architecture."""
    return BertConfig(
        a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size, a.hidden_act,
        a.hidden_dropout_prob, a.attention_probs_dropout_prob, classifier_dropout=a.classifier_dropout,
        max_position_embeddings=a.max_position_embeddings, type_vocab_size=a.type_vocab_size, layer_norm_eps=a.layer_norm_eps,
        num_labels=a.num_labels, position_offset=a.position_offset, position_embedding_type=a.position_embedding_type,
        is_decoder=a.is_decoder,
    )  # fmt: skip


def build(a: Architecture) -> nn.Module:
    """With the classification head where the checkpoint has one."""
    if "classification" in a.heads:
        return BertForSequenceClassification(config_of(a))
    return Bare(config_of(a), a.pooler)


def untrained(a: Architecture) -> nn.Module:
    """The same as training starts from it."""
    return initialized(build(a), a.initializer_range)


def call(model: nn.Module, batch: TorchBatch) -> dict[str, Tensor]:
    """The classification and its loss, or the model alone."""
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    if isinstance(model, Bare):
        model(*inputs)
        return {}
    loss, _ = model(*inputs, labels=batch.class_labels)
    return {} if loss is None or bool(loss.isnan()) else {"classifier.loss": loss}


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Why not, where it cannot be of this architecture."""
    if a.position_embedding_type == "sinusoidal" or not a.embedding_norm or a.shared_layer_norm:
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
_TABLES = (
    *(f"embeddings.{table}_embeddings" for table in ("word", "position", "token_type")),
    f"{_LAYER}.attention.self.distance_embedding",
)
_WITHOUT_PARAMETERS = (
    "embeddings.dropout", f"{_LAYER}.attention.self.dropout", f"{_LAYER}.attention.output.dropout",
    f"{_LAYER}.intermediate.intermediate_act_fn", f"{_LAYER}.output.dropout", "pooler.activation",
)  # fmt: skip

PARAMETERS = {f"bert.{table}.weight": f"bert.{table}.weight" for table in _TABLES} | {
    f"{module}.{part}": f"{module}.{part}"
    for module in (*(f"bert.{m}" for m in _MODULES), "classifier")
    for part in ("weight", "bias")
}

ACTIVATIONS: dict[str | Tap, str] = {
    **{f"bert.{name}": name for name in (*_TABLES, *_MODULES, *_WITHOUT_PARAMETERS)},
    Tap(f"bert.{_LAYER}.attention.self.dropout", "input"): f"{_LAYER}.attention.self.probs",
    Tap(f"bert.{_LAYER}.attention.self", "output", 0): f"{_LAYER}.attention.self.context",
    "dropout": "dropout",
    "classifier": "classifier",
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
