"""One BERT with its mask in several forms: added to the scores, true at padding, as lengths, and in an object."""

from dataclasses import dataclass

import torch

from conformance.tests.third_party_models.joined import JoinedBert


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


@dataclass(frozen=True)
class Visible:
    tokens: torch.Tensor
    causal: bool


class ObjectMaskBert(JoinedBert):
    def forward(self, ids, kinds, visible: Visible):
        assert not visible.causal
        return super().forward(ids, kinds, visible.tokens)


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
    """A BERT whose mask has a row for each query, and which uses each of them."""

    def forward(self, ids, kinds, mask):
        if mask.shape[1:] != (ids.shape[1], ids.shape[1]):
            raise ValueError("expected a mask (B, S, S)")
        return super().forward(ids, kinds, mask.bool().all(1))
