"""The network as a candidate; its parameters and activations already have Hugging Face's names."""

from typing import Any

from torch import Tensor, nn

from conformance import Architecture, Tap, TorchBatch, TorchImplementation

from ..hugging_face_losses import losses
from ..initialization import untrained
from ..wordpiece import tokenizer
from .config import BertConfig
from .heads import BertForSequenceClassification, BertForTokens, Classified, TokenLogits
from .model import BertModel


class Bare(nn.Module):
    """BertModel alone, under the name that it has in a larger model."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None, encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        output = self.bert(
            input_ids, attention_mask, token_type_ids, position_ids=position_ids, encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
        )  # fmt: skip
        return output.last_hidden_state, output.pooler_output


def config_of(a: Architecture) -> BertConfig:
    """Return the configuration for an architecture."""
    return BertConfig(
        a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size, a.hidden_act,
        a.hidden_dropout_prob, a.attention_probs_dropout_prob, classifier_dropout=a.classifier_dropout,
        max_position_embeddings=a.max_position_embeddings, type_vocab_size=a.type_vocab_size, layer_norm_eps=a.layer_norm_eps,
        num_labels=1 if "multiple_choice" in a.heads else a.num_labels, problem_type=a.problem_type,
        position_offset=a.position_offset, position_embedding_type=a.position_embedding_type,
        is_decoder=a.is_decoder, add_cross_attention=a.add_cross_attention, pruned_heads=dict(a.pruned_heads),
    )  # fmt: skip


def build(a: Architecture) -> nn.Module:
    """Return the network with the checkpoint's heads: classification, token classification, question answering, multiple choice."""
    config = config_of(a)
    if {"classification", "multiple_choice"} & set(a.heads):
        return BertForSequenceClassification(config)
    classes, spans = "token_classification" in a.heads, "question_answering" in a.heads
    if classes or spans:
        return BertForTokens(config, classes, spans, a.pooler)
    return Bare(config, a.pooler)


def call(model: Any, batch: TorchBatch) -> dict[str, Tensor]:
    """Run the network, and return the losses of its heads for the labels in the batch; without a head, return nothing."""
    states = batch.encoder_hidden_states
    output = model(
        batch.input_ids, batch.attention_mask, batch.token_type_ids, position_ids=batch.position_ids,
        encoder_hidden_states=None if states is None else states.to(next(model.parameters()).dtype),
        encoder_attention_mask=batch.encoder_attention_mask,
    )  # fmt: skip
    if isinstance(output, Classified):
        return losses({"classifier": output.logits}, batch, model.problem_type)
    named = {"classifier": output.classes, "qa_outputs": output.spans} if isinstance(output, TokenLogits) else {}
    return losses({name: logits for name, logits in named.items() if logits is not None}, batch)


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why the network does not support the architecture, or None if it does."""
    if {"classification", "question_answering"} <= set(a.heads):
        return "the walk's Bert classifies sequences, or answers questions, and not both"
    if a.position_embedding_type == "sinusoidal" or not a.embedding_norm or a.shared_layer_norm:
        return "the walk's Bert has learned positions, and a norm at the embeddings and at each residual"
    return None


FEATURES = (
    "relative_key", "relative_key_query", "is_decoder", "add_cross_attention", "pruned_heads", "position_ids", "attention_mask_3d",
)  # fmt: skip

_LAYER = "encoder.layer.{layer}"
_ATTENTIONS = (f"{_LAYER}.attention", f"{_LAYER}.crossattention")
_MODULES = (
    "embeddings.LayerNorm",
    *(f"{path}.self.{part}" for path in _ATTENTIONS for part in ("query", "key", "value")),
    *(f"{path}.output.{part}" for path in _ATTENTIONS for part in ("dense", "LayerNorm")),
    *(f"{_LAYER}.{part}" for part in ("intermediate.dense", "output.dense", "output.LayerNorm")),
    "pooler.dense",
)
_TABLES = (
    *(f"embeddings.{table}_embeddings" for table in ("word", "position", "token_type")),
    f"{_LAYER}.attention.self.distance_embedding",
)
_WITHOUT_PARAMETERS = (
    "embeddings.dropout", *(f"{path}.{part}.dropout" for path in _ATTENTIONS for part in ("self", "output")),
    f"{_LAYER}.intermediate.intermediate_act_fn", f"{_LAYER}.output.dropout", "pooler.activation",
)  # fmt: skip

PARAMETERS = {f"bert.{table}.weight": f"bert.{table}.weight" for table in _TABLES} | {
    f"{module}.{part}": f"{module}.{part}"
    for module in (*(f"bert.{m}" for m in _MODULES), "classifier", "qa_outputs")
    for part in ("weight", "bias")
}

ACTIVATIONS: dict[str | Tap, str] = {
    **{f"bert.{name}": name for name in (*_TABLES, *_MODULES, *_WITHOUT_PARAMETERS)},
    **{Tap(f"bert.{path}.self.dropout", "input"): f"{path}.self.probs" for path in _ATTENTIONS},
    **{Tap(f"bert.{path}.self", "output", 0): f"{path}.self.context" for path in _ATTENTIONS},
    "dropout": "dropout",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}

inner_workings = TorchImplementation(
    build=build,
    parameters=PARAMETERS,
    activations=ACTIVATIONS,
    call=call,
    untrained=untrained(build),
    unused=("cls.*",),
    supported=supported,
    features=FEATURES,
    name="inner-workings",
    tokenizer=tokenizer,
)
