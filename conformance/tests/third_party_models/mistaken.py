"""Models with one mistake each."""

import torch
from torch import nn
from torch.nn import functional as F

from conformance.tests.third_party_models.annotated import AnnotatedBert, AnnotatedLayer
from conformance.tests.third_party_models.layouts import LensBert
from conformance.tests.third_party_models.masked import AddedMaskBert
from conformance.tests.third_party_models.plain import Layer, PlainBert
from conformance.tests.third_party_models.styles import FairseqLayer, FusedBert, FusedLayer, FusedSizes, SentenceEncoder


class UnscaledLayer(FairseqLayer):
    scaling = 1.0


class UnscaledEncoder(SentenceEncoder):
    """The scores are not divided by √d."""

    layer = UnscaledLayer


class SizesAloneBert(AnnotatedBert):
    """A model, which is correct, whose constructor takes sizes alone."""

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)


class TanhLayer(AnnotatedLayer):
    def inner(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class TanhBert(SizesAloneBert):
    """GELU is computed in its tanh form."""

    layer = TanhLayer


class FirstNormBert(SizesAloneBert):
    """The embedding norm has another epsilon."""

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)
        self.norm.eps = 1e-3


class WrongSignLayer(FusedLayer):
    sign = -1

    def attended(self, q, k, v, mask):
        added = (1 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.sign * added).softmax(-1) @ v


class WrongSplitLayer(WrongSignLayer):
    sign = 1

    def split(self, x):
        return x.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)


class WrongSignBert(FusedBert):
    """The mask is added with the wrong sign: with the inverse mask, all tokens have the same score."""

    layer = WrongSignLayer

    def forward(self, idx, segments, mask):
        return self.encode(idx, segments, mask)


class WrongSplitBert(WrongSignBert):
    """The heads take every n-th element: with a mask to add, all tokens have the same score."""

    layer = WrongSplitLayer


class WeakMaskLayer(Layer):
    def attended(self, q, k, v, mask):
        added = (1 - mask[:, None, None, :].to(q.dtype)) * -3.0
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + added).softmax(-1) @ v


class WeakMaskBert(PlainBert):
    """Masked keys keep exp(-3) of their weight: with the lowest number as the mask, which is not Hugging Face's, they keep none."""

    layer = WeakMaskLayer

    def forward(self, input_ids, token_type_ids, attention_mask):
        return self.encode(input_ids, token_type_ids, attention_mask)


class WeakMaskOfOtherNamesBert(WeakMaskBert):
    """The same, under names that are not Hugging Face's."""

    def forward(self, tokens, kinds, mask):
        return self.encode(tokens, kinds, mask)


class LastNormBert(FusedBert):
    """The last norm has another epsilon, so that the only result is wrong."""

    def __init__(self, config: FusedSizes):
        super().__init__(config)
        self.layers[-1].norm2.eps = 0.05


class PositionsFirstBert(LastNormBert):
    """The same mistake, in a result with the axis of positions first."""

    def forward(self, idx, segments, mask):
        return super().forward(idx, segments, mask).transpose(0, 1)


class FirstNormAddedMaskBert(AddedMaskBert):
    """A mask to add is taken, and the embedding norm has another epsilon."""

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        self.norm.eps = 1e-3


class ScaledLensBert(LensBert):
    """The logits are multiplied by a parameter that BERT does not have."""

    def make(self, width, layers, heads, inner):
        super().make(width, layers, heads, inner)
        nn.init.constant_(self.logit_scale, 2.0)

    def forward(self, tokens, token_type, mask):
        return super().forward(tokens, token_type, mask) * self.logit_scale
