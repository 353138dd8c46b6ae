"""The tutorial's network as a candidate: the names of its parameters and activations, its examples and its training."""

from collections.abc import Iterator

from torch import Tensor, nn

from conformance import (
    Architecture,
    Batch,
    PretrainingConventions,
    PretrainingCorpus,
    PretrainingData,
    Tap,
    TorchBatch,
    TorchImplementation,
)

from ..initialization import untrained
from . import wordpiece
from .corpus import tokenized
from .examples import Examples
from .network import BERT, BERTLM, IGNORED
from .trainer import losses_of, train


def build(a: Architecture) -> BERTLM:
    """Return the module with the sizes of an architecture."""
    bert = BERT(
        a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size, a.max_position_embeddings,
        a.type_vocab_size, a.layer_norm_eps, a.hidden_dropout_prob, a.attention_probs_dropout_prob, a.activation_dropout,
    )  # fmt: skip
    return BERTLM(bert, a.hidden_size, a.vocab_size)


def call(model: nn.Module, batch: TorchBatch) -> dict[str, Tensor]:
    """Run both heads, and return the losses for the labels in the batch."""
    given = batch.filled()
    return losses(model(given.input_ids, given.token_type_ids, given.attention_mask), batch)


def losses(outputs: tuple[Tensor, Tensor], batch: TorchBatch, ignored_pairs: int = IGNORED) -> dict[str, Tensor]:
    """Return the two pre-training losses and their sum, or nothing if the batch has no labels."""
    if batch.labels is None or batch.next_sentence_label is None:
        return {}
    masked, following = losses_of(*outputs, batch, ignored_pairs)
    return {"cls.predictions.loss": masked, "cls.seq_relationship.loss": following, "cls.loss": masked + following}


def epoch_of(given: PretrainingCorpus, epoch: int) -> Iterator[Batch]:
    """Yield all examples of an epoch, as one batch."""
    tokenizer = wordpiece.of({piece: i for i, piece in enumerate(given.vocabulary)})
    corpus = tokenized(map(list, given.conversations), tokenizer)
    yield Examples(corpus, given.vocabulary, given.length, given.seed).batch(epoch, len(corpus.firsts))


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why the tutorial's network does not support the architecture, or None if it does."""
    if a.position_embedding_type != "sinusoidal" or a.embedding_norm or a.shared_layer_norm or a.hidden_act != "gelu":
        return "the tutorial's network has sinusoidal positions, no norm at the embeddings, and erf-GELU"
    if a.position_offset:
        return f"the tutorial's network counts positions from 0, not from {a.position_offset}"
    if set(a.heads) != {"plain_masked_lm", "plain_next_sentence"}:
        return "the tutorial's network has both heads, each a linear layer and a log-softmax"
    return None


_BLOCK, _LAYER = "bert.encoder_blocks.{layer}", "encoder.layer.{layer}"

LINEAR: dict[str | Tap, str] = {
    **{f"{_BLOCK}.self_multihead.{part}": f"{_LAYER}.attention.self.{part}" for part in ("query", "key", "value")},
    f"{_BLOCK}.self_multihead.output_linear": f"{_LAYER}.attention.output.dense",
    f"{_BLOCK}.feed_forward.fc1": f"{_LAYER}.intermediate.dense",
    f"{_BLOCK}.feed_forward.fc2": f"{_LAYER}.output.dense",
}
NORMS: dict[str | Tap, str] = {
    f"{_BLOCK}.attention_norm": f"{_LAYER}.attention.output.LayerNorm",
    f"{_BLOCK}.output_norm": f"{_LAYER}.output.LayerNorm",
}

PARAMETERS = {
    "bert.embedding.token.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embedding.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    **{f"{ours}.{part}": f"bert.{theirs}.{part}" for ours, theirs in (LINEAR | NORMS).items() for part in ("weight", "bias")},
    "mask_lm.linear.weight": "cls.predictions.decoder.weight",
    "mask_lm.linear.bias": "cls.predictions.bias",
    "next_sentence.linear.weight": "cls.seq_relationship.weight",
    "next_sentence.linear.bias": "cls.seq_relationship.bias",
}

ACTIVATIONS: dict[str | Tap, str] = {
    "bert.embedding.token": "embeddings.word_embeddings",
    "bert.embedding.position": "embeddings.position_embeddings",
    "bert.embedding.segment": "embeddings.token_type_embeddings",
    Tap("bert.embedding.dropout", "input"): "embeddings.sum",
    "bert.embedding.dropout": "embeddings.dropout",
    **LINEAR,
    **NORMS,
    Tap(f"{_BLOCK}.self_multihead.dropout", "input"): f"{_LAYER}.attention.self.probs",
    f"{_BLOCK}.self_multihead.dropout": f"{_LAYER}.attention.self.dropout",
    Tap(f"{_BLOCK}.self_multihead.output_linear", "input"): f"{_LAYER}.attention.self.context",
    f"{_BLOCK}.dropout": f"{_LAYER}.attention.output.dropout",
    f"{_BLOCK}.feed_forward.activation": f"{_LAYER}.intermediate.intermediate_act_fn",
    f"{_BLOCK}.feed_forward.dropout": f"{_LAYER}.intermediate.dropout",
    Tap(f"{_BLOCK}.dropout", call=1): f"{_LAYER}.output.dropout",
    "mask_lm.linear": "cls.predictions.decoder",
    "mask_lm": "cls.predictions.log_probs",
    "next_sentence.linear": "cls.seq_relationship",
    "next_sentence": "cls.seq_relationship.log_probs",
}

demystified = TorchImplementation(
    build=build,
    parameters=PARAMETERS,
    activations=ACTIVATIONS,
    call=call,
    untrained=untrained(build),
    train=train,
    pretraining_data=PretrainingData(epoch_of, PretrainingConventions(token_types=(1, 2), dynamic=True)),
    ignored=("bert.embedding.position.table",),
    supported=supported,
    name="demystified",
)
