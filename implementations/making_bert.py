"""*Making Bert*: the BERT of the course exercise, written from its description and loaded with the original weights.

The module tree prints as in the exercise. Every component can be used, and tested, on its own.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conformance import Architecture, Layout, Tap, TorchBatch, TorchImplementation, tied

from .initialization import untrained


class BertEmbedding(nn.Module):
    """Dropout of LayerNorm(token + position + token type): (B, S), (B, S) -> (B, S, H)."""

    def __init__(
        self, vocab_size: int, hidden_size: int, max_positions: int = 512, type_vocab_size: int = 2, eps: float = 1e-12,
        dropout: float = 0.1, first_position: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first_position = first_position
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = nn.Embedding(max_positions, hidden_size)
        self.token_type_embedding = nn.Embedding(type_vocab_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + self.first_position  # (S,)
        summed = self.token_embedding(input_ids) + self.token_type_embedding(token_type_ids)  # (B, S, H)
        return self.dropout(self.layer_norm(summed + self.position_embedding(positions)))


class PureSelfAttentionLayer(nn.Module):
    """softmax(q kᵀ / √d) v for each head, with the heads concatenated: (B, S, H) -> (B, S, H)."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.project_query = nn.Linear(hidden_size, hidden_size)
        self.project_key = nn.Linear(hidden_size, hidden_size)
        self.project_value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self._heads(self.project_query(hidden))  # (B, h, S, d)
        key = self._heads(self.project_key(hidden))  # (B, h, S, d)
        value = self._heads(self.project_value(hidden))  # (B, h, S, d)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, h, S, S)
        if mask is not None:
            lowest = scores.new_full((), -math.inf).nan_to_num()  # the lowest finite number of the format
            scores = torch.where(mask[:, None, None, :] == 0, lowest, scores)
        attended = self.dropout(scores.softmax(-1)) @ value  # (B, h, S, d)
        return attended.transpose(1, 2).flatten(2)  # (B, S, H)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class SelfAttentionLayer(nn.Module):
    """LayerNorm(x + dropout(W attention(x) + b)): (B, S, H) -> (B, S, H)."""

    def __init__(
        self, hidden_size: int, num_heads: int, eps: float = 1e-12, dropout: float = 0.1, probs_dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.attention = PureSelfAttentionLayer(hidden_size, num_heads, probs_dropout)
        self.mlp = nn.Linear(hidden_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.layer_norm(hidden + self.dropout(self.mlp(self.attention(hidden, mask))))


class NormedResidualLayer(nn.Module):
    """LayerNorm(x + dropout(W₂ GELU(W₁ x + b₁) + b₂)): (B, S, H) -> (B, S, H)."""

    def __init__(self, hidden_size: int, intermediate_size: int, eps: float = 1e-12, dropout: float = 0.1) -> None:
        super().__init__()
        self.mlp1 = nn.Linear(hidden_size, intermediate_size)
        self.mlp2 = nn.Linear(intermediate_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = F.gelu(self.mlp1(hidden))  # (B, S, I)
        return self.layer_norm(hidden + self.dropout(self.mlp2(inner)))


class BertLayer(nn.Module):
    """Self-attention, then the MLP, each with a residual connection: (B, S, H) -> (B, S, H)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, eps: float = 1e-12, dropout: float = 0.1,
        probs_dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention = SelfAttentionLayer(hidden_size, num_heads, eps, dropout, probs_dropout)
        self.residual = NormedResidualLayer(hidden_size, intermediate_size, eps, dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.residual(self.attention(hidden, mask))


class BertLMHead(nn.Module):
    """U LayerNorm(GELU(W x + b)) + c, U tied to the token embedding: (B, S, H) -> (B, S, V)."""

    def __init__(self, hidden_size: int, vocab_size: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.mlp = nn.Linear(hidden_size, hidden_size)
        self.unembedding = nn.Linear(hidden_size, vocab_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.unembedding(self.layer_norm(F.gelu(self.mlp(hidden))))


class Bert(nn.Module):
    """Embedding, layers and head: (B, S) ids, (B, S) token types, mask or None -> (B, S, V) logits."""

    def __init__(
        self, vocab_size: int = 28996, hidden_size: int = 768, max_positions: int = 512, type_vocab_size: int = 2,
        intermediate_size: int = 3072, num_layers: int = 12, num_heads: int = 12, eps: float = 1e-12, dropout: float = 0.1,
        probs_dropout: float = 0.1, first_position: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = BertEmbedding(vocab_size, hidden_size, max_positions, type_vocab_size, eps, dropout, first_position)
        sizes = (hidden_size, intermediate_size, num_heads)
        layers = (BertLayer(*sizes, eps, dropout, probs_dropout) for _ in range(num_layers))
        self.transformer = nn.Sequential(*layers)
        self.lm_head = BertLMHead(hidden_size, vocab_size, eps)
        self.lm_head.unembedding.weight = self.embedding.token_embedding.weight

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.embedding(input_ids, token_type_ids)  # (B, S, H)
        for layer in self.transformer:
            hidden = layer(hidden, mask)  # (B, S, H)
        return self.lm_head(hidden)


def build(a: Architecture) -> Bert:
    """Return the module with the sizes of an architecture."""
    return Bert(
        a.vocab_size, a.hidden_size, a.max_position_embeddings, a.type_vocab_size, a.intermediate_size,
        a.num_hidden_layers, a.num_attention_heads, a.layer_norm_eps, a.hidden_dropout_prob, a.attention_probs_dropout_prob,
        a.position_offset,
    )  # fmt: skip


def call(model: Bert, batch: TorchBatch) -> None:
    """Run the module; the exercise's signature requires token types, so zeros are passed where a check omits them."""
    types = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
    model(batch.input_ids, types, batch.attention_mask)


def supported(a: Architecture, device: str, dtype: str) -> str | None:
    """Return why the exercise's Bert does not support the architecture, or None if it does."""
    if "masked_lm" not in a.heads:
        return "the exercise's Bert ends in a masked-LM head, which this checkpoint has not"
    if a.position_embedding_type != "absolute" or not a.embedding_norm or a.shared_layer_norm or a.hidden_act != "gelu":
        return "the exercise's Bert has learned positions, a norm at the embeddings and each residual, and erf-GELU"
    return None


def _affine(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}


_LAYER, _THEIRS = "transformer.{layer}", "bert.encoder.layer.{layer}"

PARAMETERS: dict[str, str | Layout] = {
    "embedding.token_embedding.weight": "bert.embeddings.word_embeddings.weight",
    "embedding.position_embedding.weight": "bert.embeddings.position_embeddings.weight",
    "embedding.token_type_embedding.weight": "bert.embeddings.token_type_embeddings.weight",
    **_affine("embedding.layer_norm", "bert.embeddings.LayerNorm"),
    **_affine(f"{_LAYER}.attention.attention.project_query", f"{_THEIRS}.attention.self.query"),
    **_affine(f"{_LAYER}.attention.attention.project_key", f"{_THEIRS}.attention.self.key"),
    **_affine(f"{_LAYER}.attention.attention.project_value", f"{_THEIRS}.attention.self.value"),
    **_affine(f"{_LAYER}.attention.mlp", f"{_THEIRS}.attention.output.dense"),
    **_affine(f"{_LAYER}.attention.layer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    **_affine(f"{_LAYER}.residual.mlp1", f"{_THEIRS}.intermediate.dense"),
    **_affine(f"{_LAYER}.residual.mlp2", f"{_THEIRS}.output.dense"),
    **_affine(f"{_LAYER}.residual.layer_norm", f"{_THEIRS}.output.LayerNorm"),
    **_affine("lm_head.mlp", "cls.predictions.transform.dense"),
    **_affine("lm_head.layer_norm", "cls.predictions.transform.LayerNorm"),
    "lm_head.unembedding.weight": tied("bert.embeddings.word_embeddings.weight"),
    "lm_head.unembedding.bias": "cls.predictions.bias",
}

_OWN = "encoder.layer.{layer}"

ACTIVATIONS: dict[str | Tap, str] = {
    "embedding.token_embedding": "embeddings.word_embeddings",
    "embedding.token_type_embedding": "embeddings.token_type_embeddings",
    "embedding.position_embedding": "embeddings.position_embeddings",
    "embedding.layer_norm": "embeddings.LayerNorm",
    "embedding.dropout": "embeddings.dropout",
    f"{_LAYER}.attention.attention.project_query": f"{_OWN}.attention.self.query",
    f"{_LAYER}.attention.attention.project_key": f"{_OWN}.attention.self.key",
    f"{_LAYER}.attention.attention.project_value": f"{_OWN}.attention.self.value",
    Tap(f"{_LAYER}.attention.attention.dropout", "input"): f"{_OWN}.attention.self.probs",
    f"{_LAYER}.attention.attention.dropout": f"{_OWN}.attention.self.dropout",
    f"{_LAYER}.attention.attention": f"{_OWN}.attention.self.context",
    f"{_LAYER}.attention.mlp": f"{_OWN}.attention.output.dense",
    f"{_LAYER}.attention.dropout": f"{_OWN}.attention.output.dropout",
    f"{_LAYER}.attention.layer_norm": f"{_OWN}.attention.output.LayerNorm",
    f"{_LAYER}.residual.mlp1": f"{_OWN}.intermediate.dense",
    Tap(f"{_LAYER}.residual.mlp2", "input"): f"{_OWN}.intermediate.intermediate_act_fn",
    f"{_LAYER}.residual.mlp2": f"{_OWN}.output.dense",
    f"{_LAYER}.residual.dropout": f"{_OWN}.output.dropout",
    f"{_LAYER}.residual.layer_norm": f"{_OWN}.output.LayerNorm",
    "lm_head.mlp": "cls.predictions.transform.dense",
    Tap("lm_head.layer_norm", "input"): "cls.predictions.transform.transform_act_fn",
    "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.unembedding": "cls.predictions.decoder",
}

making_bert = TorchImplementation(
    build=build,
    parameters=PARAMETERS,
    activations=ACTIVATIONS,
    call=call,
    untrained=untrained(build),
    unused=("bert.pooler.*", "cls.seq_relationship.*", "classifier.*", "qa_outputs.*"),
    supported=supported,
    name="making-bert",
)
