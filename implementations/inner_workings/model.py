"""The whole network without heads."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import lowest_of
from .config import BertConfig
from .embeddings import BertEmbeddings
from .encoder import BertEncoder, BertPooler


class BertModelOutput(NamedTuple):
    """The network's output, under Hugging Face's names; the last three are None unless requested."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None
    hidden_states: list[Tensor] | None
    attentions: list[Tensor] | None
    cross_attentions: list[Tensor] | None


class BertModel(nn.Module):
    """Embeddings, encoder, pooler: (B, S) ids -> (B, S, H) and, with a pooler, (B, H).

    Args of the forward pass:
        attention_mask: (B, K), with K the tokens of the cache and of this call: 1 for those that may be attended to; or (B, S, K),
            for each query; None: all. In a decoder no token attends to a later one, whatever the mask.
        token_type_ids: (B, S); None: zeros.
        head_mask: (L, h) or, for every layer, (h,): 1 for the heads that are kept in both attentions; None: all.
        position_ids: (B, S); None: in order.
        inputs_embeds: (B, S, H), used instead of the word embeddings.
        encoder_hidden_states: (B, T, H), to which a decoder with cross-attention attends.
        encoder_attention_mask: (B, T), 1 for the states that may be attended to; None: all.
        cache: a cache from `new_cache`, in a decoder: keys and values of the tokens so far, to which those of this call are added.
        output_attentions: whether to return the probabilities.
        output_hidden_states: whether to return the inputs of all layers and the last output.

    Raises:
        ValueError: the mask is for another number of tokens than those of the cache and this call; or there is a cache, and the
            network has no layers, or activations are to be recomputed.
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__()
        self.is_decoder = config.is_decoder
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        for number, heads in config.pruned_heads.items():
            layer: Any = self.encoder.layer[number]
            layer.attention.prune_heads(heads)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        head_mask: Tensor | None = None, position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None, encoder_attention_mask: Tensor | None = None,
        cache: list[list[Tensor]] | None = None, output_attentions: bool = False, output_hidden_states: bool = False,
    ) -> BertModelOutput:  # fmt: skip
        past = 0 if cache is None else cached_length(cache)
        hidden = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds, past)  # (B, S, H)
        length = hidden.shape[1]
        if attention_mask is not None and attention_mask.shape[-1] != past + length:
            raise ValueError(
                f"attention_mask is for {attention_mask.shape[-1]} tokens; the cache has {past} and this call {length}, "
                f"so it must be for {past + length}"
            )
        mask = None if attention_mask is None else visible(attention_mask)  # (B, 1 or S, K)
        if self.is_decoder:
            earlier = torch.ones(length, past + length, dtype=torch.bool, device=hidden.device).tril(past)[None]
            mask = earlier if mask is None else mask & earlier
        added = None if mask is None else to_add(mask, hidden)
        states_mask = None if encoder_attention_mask is None else to_add(visible(encoder_attention_mask), hidden)
        if head_mask is not None:
            head_mask = head_mask.to(hidden.dtype).expand(len(self.encoder.layer), -1)[:, :, None, None]  # (L, h, 1, 1)
        nothing: list[Tensor] = []
        hidden_states = nothing[:] if output_hidden_states else None
        attentions = nothing[:] if output_attentions else None
        cross_attentions = nothing[:] if output_attentions and encoder_hidden_states is not None else None
        hidden = self.encoder(
            hidden, added, head_mask, encoder_hidden_states, states_mask, cache, hidden_states, attentions, cross_attentions
        )
        pooled = None if self.pooler is None else self.pooler(hidden)
        return BertModelOutput(hidden, pooled, hidden_states, attentions, cross_attentions)


def new_cache(config: BertConfig) -> list[list[Tensor]]:
    """Return an empty cache: for each layer, a list for keys and values of the tokens, and one for those of an encoder's states."""
    return [[] for _ in range(2 * config.num_hidden_layers)]


def cached_length(cache: list[list[Tensor]]) -> int:
    """Return the number of tokens whose keys a cache has.

    Raises:
        ValueError: it is the cache of a network without layers.
    """
    if len(cache) == 0:
        raise ValueError("a network without layers keeps no keys, from whose number the positions follow: leave the cache out")
    return cache[0][0].shape[2] if len(cache[0]) > 0 else 0


def visible(mask: Tensor) -> Tensor:
    """Return whether each query may attend to each key: (B, K) or (B, S, K) numbers -> (B, 1 or S, K)."""
    return (mask if mask.dim() == 3 else mask[:, None]) != 0


def to_add(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask added to the scores, (B, 1, Q, K): 0 where a key may be attended to, else the lowest finite number."""
    lowest = lowest_of(like)
    return torch.where(mask[:, None], torch.zeros_like(lowest), lowest)
