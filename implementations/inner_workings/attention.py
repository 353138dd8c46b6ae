"""Attention: the mean of the values, weighted by the softmax of a query's products with the keys; and its variants.

- *Relative positions* (`relative_key`, `relative_key_query`): the scores have terms for the distance between query and key.
- *Cross-attention*: keys and values are computed from an encoder's states instead of the tokens' own.
- *Cache*: keys and values of earlier calls are kept, so that a sequence can be continued one token at a time.
- *Pruning*: heads are removed from the projections, which leaves a narrower attention.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from .config import BertConfig
from .shapes import reported


class BertSelfAttention(nn.Module):
    """softmax(q kᵀ / √d + mask) v for each head, with the heads concatenated: (B, S, H) -> (B, S, h d), and the probabilities.

    K is the number of keys: S without a cache or an encoder's states. The probabilities are (B, h, S, K).

    Args of the forward pass:
        attention_mask: added to the scores; 0 where a key may be attended to, the lowest number of the format elsewhere.
        head_mask: (h, 1, 1), multiplies the probabilities; 0 for a head that is left out.
        states: (B, K, H), an encoder's states, from which keys and values are computed; None: the hidden states themselves.
        past: keys and values, (B, h, K, d) each, of earlier calls, empty before the first; those of this call are appended. Keys
            and values of an encoder's states are computed only once.
    """

    def __init__(self, config: BertConfig, is_cross_attention: bool = False) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        relative = config.position_embedding_type.startswith("relative") and not is_cross_attention
        self.longest = config.max_position_embeddings - 1
        self.adds_keys = config.position_embedding_type == "relative_key_query"
        width = config.hidden_size // config.num_attention_heads
        self.distance_embedding = nn.Embedding(2 * config.max_position_embeddings - 1, width) if relative else None

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None,
        states: Tensor | None = None, past: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        reported("hidden states", hidden)  # (B, S, H)
        query = reported("query, linear", self.query(hidden))  # (B, S, H)
        if past is not None and states is not None and len(past) == 2:
            key, value = past
            query = reported("query", self.by_head(query))
        else:
            source = hidden if states is None else states
            key = reported("key, linear", self.key(source))  # (B, S, H)
            value = reported("value, linear", self.value(source))  # (B, S, H)
            query = reported("query", self.by_head(query))  # (B, h, S, d)
            key = reported("key", self.by_head(key))  # (B, h, S, d)
            value = reported("value", self.by_head(value))  # (B, h, S, d)
            if past is not None:
                if len(past) == 2:
                    key = reported("key, with the past", torch.cat([past[0], key], 2))  # (B, h, K, d)
                    value = reported("value, with the past", torch.cat([past[1], value], 2))  # (B, h, K, d)
                past.clear()
                past.append(key)
                past.append(value)
        scores = reported("attention scores", query @ reported("key, transposed", key.transpose(-1, -2)))  # (B, h, S, K)
        if self.distance_embedding is not None:
            keys = torch.arange(key.shape[2], device=key.device)
            distances = keys[-query.shape[2] :, None] - keys[None, :]  # (S, K): the queries are the last tokens
            rows = reported("distance embeddings", self.distance_embedding(distances + self.longest))  # (S, K, d)
            scores = scores + reported("distance scores, query", torch.einsum("bhld,lrd->bhlr", query, rows))  # (B, h, S, K)
            if self.adds_keys:
                scores = scores + reported("distance scores, key", torch.einsum("bhrd,lrd->bhlr", key, rows))
        scores = reported("attention scores, scaled", scores / math.sqrt(query.shape[-1]))
        if attention_mask is not None:
            scores = (scores + attention_mask).clamp(min=lowest_of(scores))  # a row of −inf would have no softmax
        probs = reported("attention probabilities", scores.softmax(-1))  # (B, h, S, K)
        probs = reported("attention probabilities, dropout", self.dropout(probs))
        if head_mask is not None:
            probs = probs * head_mask
        context = reported("context", probs @ value)  # (B, h, S, d)
        context = reported("context, heads side by side", context.permute(0, 2, 1, 3))  # (B, S, h, d)
        return reported("context, merged", context.flatten(2)), probs  # (B, S, H)

    def by_head(self, x: Tensor) -> Tensor:
        """Return x split by head: (B, S, h d) -> (B, h, S, d)."""
        return x.unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3)


def lowest_of(x: Tensor) -> Tensor:
    """Return the lowest finite number of a tensor's format, a scalar."""
    return x.new_full((), -math.inf).nan_to_num()


class BertSelfOutput(nn.Module):
    """LayerNorm(skip + dropout(W x + b)): (B, S, h d), (B, S, H) -> (B, S, H)."""

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
    """Self-attention or cross-attention, and its output layer: (B, S, H) -> (B, S, H), and the probabilities."""

    def __init__(self, config: BertConfig, is_cross_attention: bool = False) -> None:
        super().__init__()
        self.self = BertSelfAttention(config, is_cross_attention)
        self.output = BertSelfOutput(config)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None,
        states: Tensor | None = None, past: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        context, probs = self.self(hidden, attention_mask, head_mask, states, past)
        return self.output(context, hidden), probs

    @torch.jit.unused
    def prune_heads(self, heads: Collection[int]) -> None:
        """Remove heads permanently; they are numbered from 0 among the remaining heads.

        Raises:
            ValueError: there is no head of such a number.
        """
        wrong = sorted(set(heads) - set(range(self.self.heads)))
        if wrong:
            raise ValueError(f"no heads {wrong} to prune; there are {self.self.heads}, numbered from 0")
        width = self.self.query.out_features // self.self.heads
        kept = [i for i in range(self.self.query.out_features) if i // width not in heads]
        for name in ("query", "key", "value"):
            setattr(self.self, name, _rows(getattr(self.self, name), kept))
        self.output.dense = _columns(self.output.dense, kept)
        self.self.heads -= len(set(heads))


def _rows(layer: nn.Linear, kept: list[int]) -> nn.Linear:
    """Return a layer with only these outputs."""
    pruned = nn.Linear(layer.in_features, len(kept)).to(layer.weight)
    pruned.load_state_dict({"weight": layer.weight[kept], "bias": layer.bias[kept]})
    return pruned


def _columns(layer: nn.Linear, kept: list[int]) -> nn.Linear:
    """Return a layer with only these inputs."""
    pruned = nn.Linear(len(kept), layer.out_features).to(layer.weight)
    pruned.load_state_dict({"weight": layer.weight[:, kept], "bias": layer.bias})
    return pruned
