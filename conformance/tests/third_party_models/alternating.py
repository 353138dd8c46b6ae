"""After x-transformers: attention and feed-forward parts alternate in one list, each with its own norm."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (t(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q, self.to_k, self.to_v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.to_out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, mult):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(dim, mult * dim), nn.GELU(), nn.Linear(mult * dim, dim))

    def forward(self, x, mask):
        return self.ff(x)


class AlternatingBert(nn.Module):
    def __init__(self, *, num_tokens, dim, depth, heads, max_seq_len, ff_mult=4):
        super().__init__()
        self.token_emb, self.pos_emb, self.type_emb = (
            nn.Embedding(num_tokens, dim),
            nn.Embedding(max_seq_len, dim),
            nn.Embedding(2, dim),
        )
        self.post_emb_norm = nn.LayerNorm(dim, 1e-12)
        parts = [part for _ in range(depth) for part in (Attention(dim, heads), FeedForward(dim, ff_mult))]
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(dim, 1e-12), part]) for part in parts)

    def forward(self, x, types, mask):
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1], device=x.device)) + self.type_emb(types)
        x = self.post_emb_norm(x)
        for norm, part in self.layers:
            x = norm(x + part(x, mask))
        return x
