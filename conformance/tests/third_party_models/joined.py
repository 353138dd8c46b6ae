"""With query, key and value in one tensor of shape (3, H, H), and a decoder that is the word embedding table under a second
name."""

import torch
from torch import nn
from torch.nn import functional as F


class JoinedLayer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.qkv, self.qkv_bias = nn.Parameter(torch.randn(3, width, width) * 0.02), nn.Parameter(torch.zeros(3, width))
        self.merge, self.up, self.down = nn.Linear(width, width), nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)])

    def forward(self, x, allowed):
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w, b in zip(self.qkv, self.qkv_bias, strict=True)
        )
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None, None, :])
        x = self.norms[0](x + self.merge(seen.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class JoinedBert(nn.Module):
    def __init__(self, vocab_size, width, num_layers, heads, mlp_width, max_positions):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab_size, width), nn.Embedding(max_positions, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.stack = nn.ModuleList(JoinedLayer(width, heads, mlp_width) for _ in range(num_layers))
        self.lm_dense, self.lm_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.lm_decoder = nn.Linear(width, vocab_size)
        self.lm_decoder.weight = self.words.weight

    def forward(self, ids, kinds, allowed):
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)) + self.kinds(kinds))
        for layer in self.stack:
            x = layer(x, allowed)
        return self.lm_decoder(self.lm_norm(F.gelu(self.lm_dense(x))))
