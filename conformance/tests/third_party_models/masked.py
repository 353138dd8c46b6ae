"""Models that take the mask in several forms, and models that compute the real tokens alone."""

import torch

from conformance.tests.third_party_models.layouts import JoinedBert
from conformance.tests.third_party_models.plain import Layer, PlainBert


class AddedMaskBert(JoinedBert):
    def forward(self, ids, kinds, attn_bias):
        return super().forward(ids, kinds, 0.0 + attn_bias[:, 0, 0])


class BlockedBert(JoinedBert):
    def forward(self, ids, kinds, blocked):
        return super().forward(ids, kinds, ~blocked)


class LengthsBert(JoinedBert):
    def forward(self, ids, lengths, kinds):
        return super().forward(ids, kinds, torch.arange(ids.shape[1], device=ids.device) < lengths[:, None])


class MasklessBert(JoinedBert):
    def forward(self, ids, kinds):
        return super().forward(ids, kinds, torch.ones_like(ids, dtype=torch.bool))


class Kept:
    """An object that holds only a mask and checks its type."""

    def __init__(self, bool_mask: torch.Tensor, note: str = ""):
        if bool_mask.dtype != torch.bool:
            raise ValueError("expected a mask of bool")
        self.bool_mask = bool_mask


class KeptMaskBert(JoinedBert):
    def forward(self, ids, kinds, kept: Kept):
        return super().forward(ids, kinds, kept.bool_mask)


class SquareMaskBert(JoinedBert):
    """Takes a mask with a row for each query, and uses each of them."""

    def forward(self, ids, kinds, mask):
        if mask.shape[1:] != (ids.shape[1], ids.shape[1]):
            raise ValueError("expected a mask (B, S, S)")
        return super().forward(ids, kinds, mask.bool().all(1))


class UnpaddedLayer(Layer):
    """Computes texts of several lengths that are packed as (tokens, H)."""

    def attended(self, q, k, v, lengths):
        texts = zip(*(part.split(lengths, 1) for part in (q, k, v)), strict=True)
        return torch.cat([self.of_text(i, *text) for i, text in enumerate(texts)], 1)

    def of_text(self, i, q, k, v):
        return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


class UnpaddedBert(PlainBert):
    """Takes a mask of 1 at real tokens, and returns the real tokens alone."""

    layer = UnpaddedLayer

    def packed(self, ids, kinds, real):
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        x = self.norm(self.words(ids[real]) + self.places(places[real]) + self.kinds(kinds[real]))
        for layer in self.layers:
            x = layer(x, real.sum(1).tolist())
        return x

    def forward(self, ids, kinds, attention_mask):
        return self.packed(ids, kinds, attention_mask.bool())


class InvertedUnpaddedBert(UnpaddedBert):
    """Takes a mask that is true at padding, whose name does not say so, and returns an axis of one row, (1, tokens, H)."""

    def forward(self, ids, kinds, attention_mask):
        return self.packed(ids, kinds, attention_mask == 0)[None]


class SkippedTextLayer(UnpaddedLayer):
    def of_text(self, i, q, k, v):
        return torch.zeros_like(q) if i == 1 else super().of_text(i, q, k, v)


class SkippedTextBert(UnpaddedBert):
    """Leaves the second text out of attention."""

    layer = SkippedTextLayer
