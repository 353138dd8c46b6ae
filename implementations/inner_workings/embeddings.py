"""The embeddings: from token ids to the first hidden states."""

import torch
from torch import Tensor, nn

from .config import BertConfig
from .shapes import reported


class BertEmbeddings(nn.Module):
    """Dropout of LayerNorm(word + token type + position): (B, S) ids, (B, S) token types -> (B, S, H).

    With relative positions there is no position table here; they enter the attention scores.

    Args of the forward pass:
        position_ids: (B, S) or (1, S); None: `past`, `past` + 1, …
        inputs_embeds: (B, S, H), used instead of `input_ids` and the word embeddings.
        past: number of tokens of each row in earlier calls.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.first_position = config.position_offset
        absolute = config.position_embedding_type == "absolute"
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size) if absolute else None
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None, past: int = 0,
    ) -> Tensor:  # fmt: skip
        given = input_ids if inputs_embeds is None else inputs_embeds[..., 0]  # (B, S)
        assert given is not None, "a forward pass needs input_ids or inputs_embeds"
        if position_ids is None:
            position_ids = torch.arange(past, past + given.shape[1], device=given.device)[None] + self.first_position
        reported("position ids", position_ids)  # (1, S)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(given, dtype=torch.long)
        if input_ids is not None:
            reported("token ids", input_ids)  # (B, S)
        reported("token type ids", token_type_ids)  # (B, S)
        words = self.word_embeddings(given) if inputs_embeds is None else inputs_embeds
        hidden = reported("word embeddings", words)  # (B, S, H)
        if self.position_embeddings is not None:
            places = reported("position embeddings", self.position_embeddings(position_ids))  # (1, S, H)
            types = reported("token type embeddings", self.token_type_embeddings(token_type_ids))  # (B, S, H)
            hidden = hidden + types + places
        else:
            hidden = hidden + reported("token type embeddings", self.token_type_embeddings(token_type_ids))
        hidden = reported("sum of embeddings", hidden)  # (B, S, H)
        hidden = reported("embeddings, normalised", self.LayerNorm(hidden))
        return reported("embeddings, dropout", self.dropout(hidden))
