"""After TransformerLens: kernels of shape (heads, in, d) or (heads, d, in), a decoder with its own table, and a scale."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    product, last = "bsi,hid->bshd", -1

    def __init__(self, d_model, n_heads):
        super().__init__()
        d_head = d_model // n_heads
        shape = (n_heads, d_model, d_head) if self.last == -1 else (n_heads, d_head, d_model)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(shape) * 0.02) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.zeros(n_heads, d_head)) for _ in range(3))
        self.W_O, self.b_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * 0.02), nn.Parameter(torch.zeros(d_model))

    def forward(self, x, mask):
        q = torch.einsum(self.product, x, self.W_Q) + self.b_Q
        k = torch.einsum(self.product, x, self.W_K) + self.b_K
        v = torch.einsum(self.product, x, self.W_V) + self.b_V
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        pattern = scores.masked_fill(~mask[:, None, None, :], float("-inf")).softmax(-1)
        return torch.einsum("bqhd,hdo->bqo", torch.einsum("bhqk,bkhd->bqhd", pattern, v), self.W_O) + self.b_O


class TransposedAttention(Attention):
    product, last = "bsi,hdi->bshd", 1


class Block(nn.Module):
    def __init__(self, attention, d_model, n_heads, d_mlp):
        super().__init__()
        self.attn, self.ln1, self.ln2 = attention(d_model, n_heads), nn.LayerNorm(d_model, 1e-12), nn.LayerNorm(d_model, 1e-12)
        self.mlp_in, self.mlp_out = nn.Linear(d_model, d_mlp), nn.Linear(d_mlp, d_model)
        self.register_buffer("IGNORE", torch.tensor(float("-inf")))

    def forward(self, x, mask):
        x = self.ln1(x + self.attn(x, mask))
        return self.ln2(x + self.mlp_out(F.gelu(self.mlp_in(x))))


class LensBert(nn.Module):
    attention = Attention

    def __init__(self, d_vocab, d_model, n_layers, n_heads, d_mlp, n_ctx):
        super().__init__()
        self.embed, self.pos_embed, self.token_type_embed = (
            nn.Embedding(d_vocab, d_model),
            nn.Embedding(n_ctx, d_model),
            nn.Embedding(2, d_model),
        )
        self.ln, self.head, self.head_ln = nn.LayerNorm(d_model, 1e-12), nn.Linear(d_model, d_model), nn.LayerNorm(d_model, 1e-12)
        self.blocks = nn.ModuleList(Block(self.attention, d_model, n_heads, d_mlp) for _ in range(n_layers))
        self.unembed = nn.Linear(d_model, d_vocab)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens, token_type, mask):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.ln(self.embed(tokens) + self.pos_embed(places) + self.token_type_embed(token_type))
        for block in self.blocks:
            x = block(x, mask)
        return self.unembed(self.head_ln(F.gelu(self.head(x))))


class TransposedLensBert(LensBert):
    attention = TransposedAttention
