"""Models with the names, configurations and results of several projects."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from conformance.tests.third_party_models.packed import PackedBert
from conformance.tests.third_party_models.plain import Layer, PlainBert


class FairseqLayer(Layer):
    scaling = None

    def forward(self, x, padding):
        length, rows, width = x.shape
        q, k, v = (f(x) for f in (self.q, self.k, self.v))
        q = q * (self.scaling or (width // self.heads) ** -0.5)
        q, k, v = (y.reshape(length, rows * self.heads, -1).transpose(0, 1) for y in (q, k, v))
        weights = (q @ k.transpose(1, 2)).view(rows, self.heads, length, length)
        weights = weights.masked_fill(padding[:, None, None, :], float("-inf")).softmax(-1)
        x = self.norm1(x + self.o((weights.view(-1, length, length) @ v).transpose(0, 1).reshape(length, rows, width)))
        return self.norm2(x + self.inner(x))


class SentenceEncoder(PlainBert):
    """After fairseq: positions first inside; the configuration is a plain object with Hugging Face's names."""

    layer = FairseqLayer

    def __init__(self, cfg):
        sizes = cfg.vocab_size, cfg.hidden_size, cfg.num_hidden_layers, cfg.num_attention_heads, cfg.intermediate_size
        super().__init__(*sizes, cfg.max_position_embeddings)
        self.kinds = nn.Embedding(cfg.type_vocab_size, cfg.hidden_size)
        for norm in (self.norm, *(norm for layer in self.layers for norm in (layer.norm1, layer.norm2))):
            norm.eps = cfg.layer_norm_eps

    def embedded(self, ids, kinds):
        return super().embedded(ids, kinds).transpose(0, 1)

    def forward(self, tokens, segment_labels, padding_mask):
        return {"encoder_out": self.encode(tokens, segment_labels, padding_mask).transpose(0, 1)}


@dataclass
class FusedSizes:
    vocab_size: int = 30522
    block_size: int = 512
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    n_segment: int = 2


class Conv1D(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n_in, n_out) * 0.02)
        self.b = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return torch.addmm(self.b, x.reshape(-1, x.shape[-1]), self.w).view(*x.shape[:-1], -1)


class FusedLayer(Layer):
    def __init__(self, width, heads, inner):
        super().__init__(width, heads, inner)
        self.up, self.down = Conv1D(width, inner), Conv1D(inner, width)

    def make(self, width, size):
        self.c_attn, self.o = Conv1D(width, 3 * width), Conv1D(width, width)

    def projected(self, x):
        return [self.split(y) for y in self.c_attn(x).chunk(3, -1)]


class FusedBert(PlainBert):
    """After minGPT: one product for query, key and value, kernels of (in, out), an intermediate size of four times the width."""

    layer = FusedLayer

    def __init__(self, config: FusedSizes):
        width = config.n_embd
        super().__init__(config.vocab_size, width, config.n_layer, config.n_head, 4 * width, config.block_size)
        self.kinds = nn.Embedding(config.n_segment, width)
        self.register_buffer("pos", torch.arange(config.block_size))

    def forward(self, idx, segments, mask):
        return self.encode(idx, segments, mask != 0)


class TiedBert(FusedBert):
    """Has a head for masked tokens, whose decoder has the table of word embeddings as its weight."""

    def __init__(self, config: FusedSizes):
        super().__init__(config)
        self.transform, self.ln_t = nn.Linear(config.n_embd, config.n_embd), nn.LayerNorm(config.n_embd, eps=1e-12)
        self.decoder = nn.Linear(config.n_embd, config.vocab_size)
        self.decoder.weight = self.words.weight

    def forward(self, idx, segments, mask):
        return self.decoder(self.ln_t(F.gelu(self.transform(super().forward(idx, segments, mask)))))


@dataclass(frozen=True)
class Encoded:
    """The returned value: the last hidden state and the pooled output, in a list."""

    layers: list[torch.Tensor]


class FeaturesBert(PackedBert):
    """The first part of a pipeline: it takes all inputs in one dictionary and returns a dataclass."""

    def forward(self, features):
        mask = features.get("attention_mask") == 0
        return Encoded(list(super().forward(features["input_ids"], features["token_type_ids"], key_padding_mask=mask)))


def pipeline(a):
    sizes = (a.vocab_size, a.hidden_size, a.num_hidden_layers, a.num_attention_heads, a.intermediate_size)
    return nn.Sequential(FeaturesBert(*sizes, a.max_position_embeddings))
