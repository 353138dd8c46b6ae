"""After The Annotated Transformer: a list of four linear layers, its own norm class, a mask of shape (B, 1, S)."""

import torch
from torch import nn

from conformance.tests.third_party_models.plain import Layer, PlainBert


class Norm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.a_2 * (x - mean) / torch.sqrt(variance + self.eps) + self.b_2


class AnnotatedLayer(Layer):
    def make(self, width, size):
        self.linears = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])

    def projected(self, x):
        return [self.split(linear(x)) for linear in self.linears[:3]]

    def attended(self, q, k, v, mask):
        return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ v

    def merged(self, z):
        return self.linears[-1](z.transpose(1, 2).flatten(2))


class AnnotatedBert(PlainBert):
    layer = AnnotatedLayer

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len, segments=2, eps=1e-12):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)
        self.kinds, self.norm = nn.Embedding(segments, d_model), Norm(d_model, eps)
        for layer in self.layers:
            layer.norm1, layer.norm2 = Norm(d_model, eps), Norm(d_model, eps)

    def forward(self, src, segment, src_mask):
        return self.encode(src, segment, src_mask)
