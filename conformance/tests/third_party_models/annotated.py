"""After The Annotated Transformer: a list of four linear layers, sublayers, its own norm class, a mask of shape (B, 1, S)."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.a_2 * (x - mean) / torch.sqrt(variance + self.eps) + self.b_2


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask):
        n = query.size(0)
        query, key, value = (
            linear(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.w_2(F.gelu(self.w_1(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, eps):
        super().__init__()
        self.self_attn, self.feed_forward = MultiHeadedAttention(heads, d_model), FeedForward(d_model, d_ff)
        self.norms = nn.ModuleList([LayerNorm(d_model, eps), LayerNorm(d_model, eps)])

    def forward(self, x, mask):
        x = self.norms[0](x + self.self_attn(x, x, x, mask))
        return self.norms[1](x + self.feed_forward(x))


class AnnotatedBert(nn.Module):
    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len, segments=2, eps=1e-12):
        super().__init__()
        self.lut, self.pe, self.seg = (nn.Embedding(n, d_model) for n in (vocab, max_len, segments))
        self.norm = LayerNorm(d_model, eps)
        self.layers = nn.ModuleList([EncoderLayer(d_model, heads, d_ff, eps) for _ in range(n_layers)])

    def forward(self, src, segment, src_mask):
        x = self.lut(src) + self.pe.weight[: src.size(1)] + self.seg(segment)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, src_mask)
        return x
