"""After Megatron: query, key and value interleaved by head in one product, and a four-dimensional mask that is true where
nothing is attended to."""

import torch
from torch import nn
from torch.nn import functional as F


class ParallelLayer(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, ffn_hidden_size, eps):
        super().__init__()
        self.np, self.hn = num_attention_heads, hidden_size // num_attention_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.post_attention_layernorm, self.post_mlp_layernorm = nn.LayerNorm(hidden_size, eps), nn.LayerNorm(hidden_size, eps)
        self.dense_h_to_4h = nn.Linear(hidden_size, ffn_hidden_size)
        self.dense_4h_to_h = nn.Linear(ffn_hidden_size, hidden_size)

    def forward(self, hidden, mask):
        b, s, h = hidden.shape
        q, k, v = self.query_key_value(hidden).view(b, s, self.np, 3 * self.hn).chunk(3, -1)
        seen = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=~mask)
        hidden = self.post_attention_layernorm(hidden + self.dense(seen.transpose(1, 2).reshape(b, s, h)))
        return self.post_mlp_layernorm(hidden + self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(hidden))))


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_layers, num_attention_heads, ffn_hidden_size, max_sequence_length, eps=1e-12):
        super().__init__()
        self.word, self.position = nn.Embedding(vocab_size, hidden_size), nn.Embedding(max_sequence_length, hidden_size)
        self.tokentype, self.norm = nn.Embedding(2, hidden_size), nn.LayerNorm(hidden_size, eps)
        self.transformer = nn.ModuleList(
            ParallelLayer(hidden_size, num_attention_heads, ffn_hidden_size, eps) for _ in range(num_layers)
        )

    def forward(self, tokens, attention_mask, tokentype_ids):
        position_ids = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        hidden = self.norm(self.word(tokens) + self.position(position_ids) + self.tokentype(tokentype_ids))
        for layer in self.transformer:
            hidden = layer(hidden, attention_mask)
        return hidden
