"""Modules that return the outputs of all layers, in the forms of 2018 and of later years."""

from typing import Any

import torch
from torch import nn


class ListedBert(nn.Module):
    """Returns a list of the layers' outputs, and the pooled output."""

    def __init__(self, vocab: int, width: int, layers: int, heads: int, inner: int, positions: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, inner, 0.0, "gelu", 1e-12, batch_first=True) for _ in range(layers)
        )
        self.pool = nn.Linear(width, width)

    def states(self, ids: torch.Tensor, kinds: torch.Tensor, padding: torch.Tensor) -> list[torch.Tensor]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)) + self.kinds(kinds))
        found = [x]
        for block in self.blocks:
            found.append(block(found[-1], src_key_padding_mask=padding))
        return found

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.pool(x[:, 0]))

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, padding: torch.Tensor) -> Any:
        _, *found = self.states(ids, kinds, padding)
        return found, self.pooled(found[-1])


class FlatBert(ListedBert):
    """Returns the embeddings, the layers' outputs and the pooled output in one tuple."""

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, padding: torch.Tensor) -> Any:
        found = self.states(ids, kinds, padding)
        return (*found, self.pooled(found[-1]))


class NumberedBert(ListedBert):
    """Returns the layers' outputs by names with a number."""

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, padding: torch.Tensor) -> Any:
        _, *found = self.states(ids, kinds, padding)
        return {f"layer_{i}_output": x for i, x in enumerate(found)}


class ThirdLayerBert(ListedBert):
    """Returns the output of the third layer, as a module does whose number of layers is fixed."""

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, padding: torch.Tensor) -> Any:
        return self.states(ids, kinds, padding)[3]
