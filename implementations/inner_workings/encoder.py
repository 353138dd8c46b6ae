"""A layer, the encoder that stacks layers, and the pooler."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import BertAttention
from .config import ACTIVATION_FUNCTIONS, BertConfig
from .shapes import reported


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
    """Self-attention, in a decoder cross-attention to an encoder's states, and the feed-forward network: (B, S, H) -> (B, S, H).

    The feed-forward network is applied to all positions at once or in chunks. `past` and `past_of_states` are the caches of the
    two attentions (`BertSelfAttention`). The probabilities of both are returned as well; without cross-attention, those of the
    second are empty.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.chunk = config.chunk_size_feed_forward
        self.attention = BertAttention(config)
        self.crossattention = BertAttention(config, is_cross_attention=True) if config.add_cross_attention else None
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None,
        states: Tensor | None = None, states_mask: Tensor | None = None, past: list[Tensor] | None = None,
        past_of_states: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        attended, probs = self.attention(hidden, attention_mask, head_mask, None, past)  # (B, S, H)
        cross_probs = probs[..., :0]
        if self.crossattention is not None and states is not None:
            attended, cross_probs = self.crossattention(attended, states_mask, head_mask, states, past_of_states)
        if self.chunk == 0:
            return self.feed_forward(attended), probs, cross_probs
        return torch.cat([self.feed_forward(part) for part in attended.split(self.chunk, 1)], 1), probs, cross_probs

    def feed_forward(self, attended: Tensor) -> Tensor:
        """Return the feed-forward output of any number of positions, (B, any, H) -> (B, any, H), which do not interact here."""
        return self.output(self.intermediate(attended), attended)


class BertEncoder(nn.Module):
    """The stack of layers: (B, S, H) -> (B, S, H).

    Attributes:
        gradient_checkpointing: whether a layer's activations are recomputed in the backward pass instead of kept.

    Args of the forward pass:
        head_mask: (L, h, 1, 1), for the heads of both attentions.
        cache: two lists per layer (`BertLayer`).
        hidden_states, attentions, cross_attentions: lists to which each layer appends its input, and its probabilities; None: they
            are not kept.

    Raises:
        ValueError: activations are to be recomputed, and there is a cache.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False

    def forward(
        self, hidden: Tensor, attention_mask: Tensor | None = None, head_mask: Tensor | None = None,
        states: Tensor | None = None, states_mask: Tensor | None = None, cache: list[list[Tensor]] | None = None,
        hidden_states: list[Tensor] | None = None, attentions: list[Tensor] | None = None,
        cross_attentions: list[Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        recomputes = self.gradient_checkpointing and self.training
        if recomputes and cache is not None:
            raise ValueError(
                "a layer that is recomputed in the backward pass would add its keys and values to the cache a second time: leave "
                "the cache out, or set gradient_checkpointing to False"
            )
        for i, layer in enumerate(self.layer):
            if hidden_states is not None:
                hidden_states.append(hidden)
            masks = (attention_mask, None if head_mask is None else head_mask[i])
            past = None if cache is None else cache[2 * i]
            past_of_states = None if cache is None else cache[2 * i + 1]
            if torch.jit.is_scripting() or not recomputes:  # type: ignore[attr-defined]
                hidden, probs, cross_probs = layer(hidden, masks[0], masks[1], states, states_mask, past, past_of_states)
            else:
                hidden, probs, cross_probs = recomputed(layer, hidden, masks[0], masks[1], states, states_mask)
            if attentions is not None:
                attentions.append(probs)
            if cross_attentions is not None:
                cross_attentions.append(cross_probs)
        if hidden_states is not None:
            hidden_states.append(hidden)
        return hidden


@torch.jit.unused
def recomputed(
    layer: nn.Module, hidden: Tensor, attention_mask: Tensor | None, head_mask: Tensor | None, states: Tensor | None,
    states_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return a layer's output without keeping its activations for the backward pass."""
    return checkpoint(layer, hidden, attention_mask, head_mask, states, states_mask, use_reentrant=False)


class BertPooler(nn.Module):
    """tanh(W x₀ + b), with x₀ the first token's hidden state: (B, S, H) -> (B, H)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden: Tensor) -> Tensor:
        reported("hidden states", hidden)
        first = reported("first token", hidden[:, 0])  # (B, H)
        pooled = reported("first token, linear", self.dense(first))
        return reported("first token, tanh", self.activation(pooled))
