"""Modules that compute the real tokens alone, packed as (tokens, H), as kernels for sequences of several lengths take them."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        parts = [f(x).unflatten(-1, (self.heads, -1)).transpose(0, 1).split(lengths, 1) for f in (self.query, self.key, self.value)]
        attended = torch.cat([self.attended(q, k, v, i) for i, (q, k, v) in enumerate(zip(*parts, strict=True))], 1)
        x = self.norm1(x + self.merge(attended.transpose(0, 1).flatten(1)))
        out: torch.Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return out

    def attended(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, text: int) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class UnpaddedBert(nn.Module):
    """Takes a mask of 1 at real tokens, and returns the real tokens alone."""

    block: type[Block] = Block

    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int, positions: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(self.block(width, heads, inner) for _ in range(layers))

    def packed(self, ids: torch.Tensor, kinds: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        x: torch.Tensor = self.norm(self.words(ids[real]) + self.places(places[real]) + self.kinds(kinds[real]))
        for block in self.blocks:
            x = block(x, real.sum(1).tolist())
        return x

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.packed(ids, kinds, attention_mask.bool())


class InvertedUnpaddedBert(UnpaddedBert):
    """Takes a mask that is true at padding, whose name does not say so, and keeps an axis of one row, (1, tokens, H)."""

    def packed(self, ids: torch.Tensor, kinds: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return super().packed(ids, kinds, real)[None]

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.packed(ids, kinds, attention_mask == 0)


class LastTextBlock(Block):
    """Leaves the second text out of attention."""

    def attended(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, text: int) -> torch.Tensor:
        return torch.zeros_like(query) if text == 1 else super().attended(query, key, value, text)


class SkippedTextBert(UnpaddedBert):
    block = LastTextBlock
