"""A BERT encoder in the style of JAX: kernels of shape (in, out), one product for query, key and value, separate heads in the
output projection."""

import torch
from torch import nn
from torch.nn import functional as F


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        self.offset = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.kernel + self.offset


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Dense(width, 3 * width)
        self.merge = nn.Parameter(torch.empty(heads, width // heads, width))
        self.merge_offset = nn.Parameter(torch.empty(width))
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.up, self.down = Dense(width, inner), Dense(inner, width)

    def forward(self, x, allowed):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, allowed)
        x = self.norm1(x + torch.einsum("bhsd,hdo->bso", seen, self.merge) + self.merge_offset)
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, inner, longest, kinds, eps) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(longest, width))
        self.kinds = nn.Embedding(kinds, width)
        self.norm = nn.LayerNorm(width, eps)
        self.blocks = nn.ModuleList(Block(width, heads, inner, eps) for _ in range(layers))

    def forward(self, ids, kinds=None, mask=None):
        kinds = torch.zeros_like(ids) if kinds is None else kinds
        x = self.norm(self.words(ids) + self.kinds(kinds) + self.places[: ids.shape[1]])
        allowed = None if mask is None else mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, allowed)
        return x
