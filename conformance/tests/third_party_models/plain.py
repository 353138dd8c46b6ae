"""A correct BERT in small pieces; the other models differ from it in one trait each."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.make(width, width // heads)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def make(self, width, size):
        """Make the parameters of attention; `size` is that of a head."""
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def projected(self, x):
        """Return query, key and value, (B, h, S, d)."""
        return [self.split(f(x)) for f in (self.q, self.k, self.v)]

    def attended(self, q, k, v, mask):
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None], float("-inf"))
        return scores.softmax(-1) @ v

    def merged(self, z):
        return self.o(z.transpose(-3, -2).flatten(-2))

    def attention(self, x, mask):
        return self.merged(self.attended(*self.projected(x), mask))

    def inner(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.inner(x))


class FusedAttentionLayer(Layer):
    """With torch's fused attention, whose mask is of bool or added."""

    def attended(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])


class PlainBert(nn.Module):
    layer = Layer

    def __init__(self, vocab, width, layers, heads, inner, maxlen):
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocab, maxlen, 2))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.make(width, layers, heads, inner)

    def make(self, width, layers, heads, inner):
        self.layers = nn.ModuleList(self.layer(width, heads, inner) for _ in range(layers))

    def each(self):
        return self.layers

    def looked_up(self, ids):
        return self.words(ids)

    def embedded(self, ids, kinds):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.looked_up(ids) + self.places(places) + self.kinds(kinds))

    def encode(self, ids, kinds, mask):
        x = self.embedded(ids, kinds)
        for layer in self.each():
            x = layer(x, mask)
        return x

    def forward(self, input_ids, token_type_ids, attention_mask):
        return self.encode(input_ids, token_type_ids, attention_mask.bool())
