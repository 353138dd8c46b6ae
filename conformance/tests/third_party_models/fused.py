"""After minGPT: one product for query, key and value, kernels of shape (in, out), an intermediate size of four times the width."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
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


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = Conv1D(config.n_embd, 3 * config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd)

    def forward(self, x, mask):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(mask[:, None, None, :] == 0, float("-inf")).softmax(-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn = SelfAttention(config)
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=1e-12)
        self.c_fc = Conv1D(config.n_embd, 4 * config.n_embd)
        self.c_out = Conv1D(4 * config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=1e-12)

    def forward(self, x, mask):
        x = self.ln_1(x + self.attn(x, mask))
        return self.ln_2(x + self.c_out(F.gelu(self.c_fc(x))))


class BERT(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.wse = nn.Embedding(config.n_segment, config.n_embd)
        self.ln_f = nn.LayerNorm(config.n_embd, eps=1e-12)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.register_buffer("pos", torch.arange(config.block_size))

    def forward(self, idx, segments, mask):
        x = self.ln_f(self.wte(idx) + self.wpe(self.pos[: idx.shape[1]]) + self.wse(segments))
        for block in self.h:
            x = block(x, mask)
        return x


class TiedBert(BERT):
    """A BERT with a masked-LM head whose decoder weight is the table of word embeddings."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.transform = nn.Linear(config.n_embd, config.n_embd)
        self.ln_t = nn.LayerNorm(config.n_embd, eps=1e-12)
        self.decoder = nn.Linear(config.n_embd, config.vocab_size)
        self.decoder.weight = self.wte.weight

    def forward(self, idx, segments, mask):
        x = super().forward(idx, segments, mask)
        return self.decoder(self.ln_t(F.gelu(self.transform(x))))
