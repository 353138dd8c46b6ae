"""Attention as a list of heads, each a module, as tutorials have it."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / self.k.out_features**0.5
        return torch.softmax(scores.masked_fill(mask[:, None] == 0, float("-inf")), -1) @ self.v(x)


class Kernels(nn.Module):
    """A head with kernels of (in, out)."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(width, size)) for _ in range(3))
        self.b_q, self.b_k, self.b_v = (nn.Parameter(torch.randn(size)) for _ in range(3))
        self.take = nn.ModuleDict({name: nn.Identity() for name in "qkv"})

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.take[n](x @ getattr(self, f"w_{n}") + getattr(self, f"b_{n}")) for n in "qkv")
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(mask[:, None] == 0, float("-inf")), -1) @ v


class Fused(nn.Module):
    """A head with one linear layer for query, key and value."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(mask[:, None] == 0, float("-inf")), -1) @ v


class Stacked(nn.Module):
    """A head with kernels of (in, out) in one tensor, which no layout describes."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3, width, size))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = x @ self.qkv[:, None]
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(mask[:, None] == 0, float("-inf")), -1) @ v


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, head: type[nn.Module]) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"heads": nn.ModuleList(head(width, width // heads) for _ in range(heads))})
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads: nn.ModuleList = self.attention["heads"]  # type: ignore[assignment]
        x = self.norm1(x + self.out(torch.cat([head(x, mask) for head in heads], -1)))
        found: torch.Tensor = self.norm2(x + self.mlp(x))
        return found


class SeparateHeadsBert(nn.Module):
    head: type[nn.Module] = Head

    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int, positions: int) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocab, positions, 2))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, inner, self.head) for _ in range(layers))

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x: torch.Tensor = self.norm(self.words(ids) + self.places(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, mask)
        return x


class KernelHeadsBert(SeparateHeadsBert):
    head = Kernels


class FusedHeadsBert(SeparateHeadsBert):
    head = Fused


class StackedHeadsBert(SeparateHeadsBert):
    head = Stacked
