"""Models whose attention holds its parameters in other layouts, after projects that have them."""

import torch
from torch import nn
from torch.nn import functional as F

from conformance.tests.third_party_models.plain import FusedAttentionLayer, Layer, PlainBert


def kernel(*shape):
    return nn.Parameter(torch.randn(shape) * 0.02)


class JoinedLayer(FusedAttentionLayer):
    """Query, key and value in one tensor of shape (3, H, H)."""

    def make(self, width, size):
        self.qkv, self.qkv_bias, self.o = kernel(3, width, width), kernel(3, width), nn.Linear(width, width)

    def projected(self, x):
        return [self.split(F.linear(x, w, b)) for w, b in zip(self.qkv, self.qkv_bias, strict=True)]


class JoinedBert(PlainBert):
    """Has a head for masked tokens, whose decoder is the table of word embeddings under a second name."""

    layer = JoinedLayer

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.lm_dense, self.lm_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.lm_decoder = nn.Linear(width, len(self.words.weight))
        self.lm_decoder.weight = self.words.weight

    def forward(self, ids, kinds, allowed):
        return self.lm_decoder(self.lm_norm(F.gelu(self.lm_dense(self.encode(ids, kinds, allowed)))))


class LensLayer(Layer):
    """After TransformerLens: kernels of shape (heads, in, d), and an identity module for every value to be observed."""

    product, is_transposed = "bsi,hid->bshd", False

    def make(self, width, size):
        sizes = (size, width) if self.is_transposed else (width, size)
        self.W_Q, self.W_K, self.W_V = (kernel(self.heads, *sizes) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (kernel(self.heads, size) for _ in range(3))
        self.W_O, self.b_O = kernel(self.heads, size, width), kernel(width)
        self.hook_q, self.hook_k, self.hook_v, self.hook_pattern, self.hook_z, self.hook_out = (nn.Identity() for _ in range(6))
        self.register_buffer("IGNORE", torch.tensor(float("-inf")))

    def attention(self, x, mask):
        q = self.hook_q(torch.einsum(self.product, x, self.W_Q) + self.b_Q)
        k = self.hook_k(torch.einsum(self.product, x, self.W_K) + self.b_K)
        v = self.hook_v(torch.einsum(self.product, x, self.W_V) + self.b_V)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        pattern = self.hook_pattern(scores.masked_fill(~mask[:, None, None], self.IGNORE).softmax(-1))
        z = self.hook_z(torch.einsum("bhqk,bkhd->bqhd", pattern, v))
        return self.hook_out(torch.einsum("bqhd,hdo->bqo", z, self.W_O) + self.b_O)


class TransposedLensLayer(LensLayer):
    product, is_transposed = "bsi,hdi->bshd", True


class LensBert(PlainBert):
    """Has a decoder with its own table, a scale that forward does not read, and a pooler that it does not call."""

    layer = LensLayer

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.head, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.unembed, self.pooler = nn.Linear(width, len(self.words.weight)), nn.Linear(width, width)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens, token_type, mask):
        return self.unembed(self.head_norm(F.gelu(self.head(self.encode(tokens, token_type, mask)))))


class TransposedLensBert(LensBert):
    layer = TransposedLensLayer


class General(nn.Module):
    """Flax's DenseGeneral."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs, self.kernel, self.bias = inputs, kernel(*inputs, *outputs), kernel(*outputs)

    def forward(self, x):
        return torch.tensordot(x, self.kernel, len(self.inputs)) + self.bias


class FlaxLayer(Layer):
    """Kernels of shape (in, heads, d) and (heads, d, out)."""

    def make(self, width, size):
        self.q, self.k, self.v = (General((width,), (self.heads, size)) for _ in range(3))
        self.o = General((self.heads, size), (width,))

    def projected(self, x):
        return [f(x).transpose(1, 2) for f in (self.q, self.k, self.v)]

    def merged(self, z):
        return self.o(z.transpose(1, 2))


class FlaxBert(PlainBert):
    """Its decoder is a product with the table of word embeddings."""

    layer = FlaxLayer

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.mlm_dense, self.mlm_norm = General((width,), (width,)), nn.LayerNorm(width, 1e-12)
        self.mlm_bias = nn.Parameter(torch.zeros(len(self.words.weight)))

    def forward(self, input_ids, token_type_ids=None, attention_mask=None, deterministic=True):
        x = self.encode(input_ids, token_type_ids, attention_mask != 0)
        return self.mlm_norm(F.gelu(self.mlm_dense(x))) @ self.words.weight.T + self.mlm_bias


class InterleavedLayer(Layer):
    """Query, key and value interleaved by head in one product, and a mask of four axes that is true at padding."""

    def make(self, width, size):
        self.query_key_value, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def projected(self, x):
        return [part.transpose(1, 2) for part in self.query_key_value(x).unflatten(-1, (self.heads, -1)).chunk(3, -1)]

    def attended(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)


class MegatronBert(PlainBert):
    layer = InterleavedLayer

    def forward(self, tokens, attention_mask, tokentype_ids):
        return self.encode(tokens, tokentype_ids, attention_mask)


class Head(nn.Module):
    """A head of attention that is a module, as tutorials have it."""

    def __init__(self, width, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))

    def projected(self, x):
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x, mask):
        q, k, v = self.projected(x)
        return (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~mask[:, None], float("-inf")).softmax(-1) @ v


class KernelHead(Head):
    """A head with kernels of (in, out)."""

    def __init__(self, width, size):
        nn.Module.__init__(self)
        self.w_q, self.w_k, self.w_v = (kernel(width, size) for _ in range(3))
        self.b_q, self.b_k, self.b_v = (kernel(size) for _ in range(3))
        self.take = nn.ModuleDict({name: nn.Identity() for name in "qkv"})

    def projected(self, x):
        return (self.take[n](x @ getattr(self, f"w_{n}") + getattr(self, f"b_{n}")) for n in "qkv")


class FusedHead(Head):
    """A head with one linear layer for query, key and value."""

    def __init__(self, width, size):
        nn.Module.__init__(self)
        self.qkv = nn.Linear(width, 3 * size)

    def projected(self, x):
        return self.qkv(x).chunk(3, -1)


class StackedHead(Head):
    """A head with kernels of (in, out) in one tensor, which no layout describes."""

    def __init__(self, width, size):
        nn.Module.__init__(self)
        self.qkv = nn.Parameter(torch.randn(3, width, size))

    def projected(self, x):
        return x @ self.qkv[:, None]


class SeparateHeadsLayer(Layer):
    head = Head

    def make(self, width, size):
        self.parts, self.o = nn.ModuleList(self.head(width, size) for _ in range(self.heads)), nn.Linear(width, width)

    def attention(self, x, mask):
        return self.o(torch.cat([part(x, mask) for part in self.parts], -1))


class KernelHeadsLayer(SeparateHeadsLayer):
    head = KernelHead


class SeparateHeadsBert(PlainBert):
    layer = SeparateHeadsLayer


class KernelHeadsBert(PlainBert):
    layer = KernelHeadsLayer


class SeparateOutputsLayer(Layer):
    """The sum of one output projection per head, of which the first alone has a bias."""

    def make(self, width, size):
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.outs = nn.ModuleList(nn.Linear(size, width, bias=not head) for head in range(self.heads))

    def merged(self, z):
        return sum(out(z[:, head]) for head, out in enumerate(self.outs))


class SeparateOutputsBert(PlainBert):
    layer = SeparateOutputsLayer


class FusedHeadsLayer(SeparateHeadsLayer):
    head = FusedHead


class FusedHeadsBert(PlainBert):
    layer = FusedHeadsLayer


class StackedHeadsLayer(SeparateHeadsLayer):
    head = StackedHead


class StackedHeadsBert(PlainBert):
    layer = StackedHeadsLayer


class AttentionPart(FusedAttentionLayer):
    def __init__(self, dim, heads):
        nn.Module.__init__(self)
        self.heads = heads
        self.make(dim, dim // heads)

    def forward(self, x, mask):
        return self.attention(x, mask)


class InnerPart(nn.Sequential):
    def forward(self, x, mask):
        return super().forward(x)


class AlternatingBert(PlainBert):
    """After x-transformers: attention and feed-forward parts alternate in one list, each with its own norm."""

    def __init__(self, *, num_tokens, dim, depth, heads, max_seq_len, ff_mult=4):
        super().__init__(num_tokens, dim, depth, heads, ff_mult * dim, max_seq_len)

    def make(self, width, layers, heads, inner):
        parts = []
        for _ in range(layers):
            parts += AttentionPart(width, heads), InnerPart(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(width, 1e-12), part]) for part in parts)

    def encode(self, x, types, mask):
        x = self.embedded(x, types)
        for norm, part in self.layers:
            x = norm(x + part(x, mask))
        return x

    def forward(self, x, types, mask):
        return self.encode(x, types, mask)
