"""Third-party models with one mistake each."""

import torch
from torch import nn
from torch.nn import functional as F

from conformance.tests.third_party_models import fused
from conformance.tests.third_party_models.annotated import AnnotatedBert, FeedForward
from conformance.tests.third_party_models.fairseq import SentenceEncoder
from conformance.tests.third_party_models.lens import LensBert
from conformance.tests.third_party_models.masked import AddedMaskBert


class UnscaledEncoder(SentenceEncoder):
    """A model whose scores are not divided by √d."""

    def __init__(self, cfg):
        super().__init__(cfg)
        for layer in self.layers:
            layer.scaling = 1.0


class TanhFeedForward(FeedForward):
    def forward(self, x):
        return self.w_2(F.gelu(self.w_1(x), approximate="tanh"))


class TanhBert(AnnotatedBert):
    """A model with the tanh form of GELU."""

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)
        for layer in self.layers:
            layer.feed_forward.__class__ = TanhFeedForward


class FirstNormBert(AnnotatedBert):
    """A model whose embedding norm has an epsilon of its own."""

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)
        self.norm.eps = 1e-3


class NormlessBert(AnnotatedBert):
    """A model that has an embedding norm and never calls it."""

    def __init__(self, vocab, d_model, n_layers, heads, d_ff, max_len):
        super().__init__(vocab, d_model, n_layers, heads, d_ff, max_len)
        self.norm.forward = lambda x: x


class WidthScaledAttention(fused.SelfAttention):
    """Attention whose scores are divided by the square root of the whole width."""

    def forward(self, x, mask):
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        att = (q @ k.transpose(-2, -1)) * c**-0.5
        att = att.masked_fill(mask[:, None, None, :] == 0, float("-inf")).softmax(-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c))


class OtherAttentionBert(fused.BERT):
    """A model with another attention."""

    attention: type[nn.Module]

    def __init__(self, config: fused.Config):
        super().__init__(config)
        for block in self.h:
            block.attn.__class__ = self.attention


class WidthScaledBert(OtherAttentionBert):
    """A model whose scores are divided by the square root of the whole width."""

    attention = WidthScaledAttention


class AddedMaskAttention(fused.SelfAttention):
    """Attention that makes the usual mask to add of a mask that is 1 at tokens."""

    sign = 1

    def heads(self, y):
        return y.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = (self.heads(y) for y in self.c_attn(x).split(x.shape[-1], dim=2))
        added = (1 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        att = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.sign * added).softmax(-1)
        return self.c_proj((att @ v).transpose(1, 2).flatten(2))


class WrongSignAttention(AddedMaskAttention):
    sign = -1


class WrongSplitAttention(AddedMaskAttention):
    def heads(self, y):
        return y.unflatten(-1, (-1, self.n_head)).permute(0, 3, 1, 2)


class WrongSignBert(OtherAttentionBert):
    """A model that adds the mask with the wrong sign: with the inverse mask, all tokens have the same score."""

    attention = WrongSignAttention


class WrongSplitBert(OtherAttentionBert):
    """A model whose heads take every n-th element: with a mask to add, all tokens have the same score."""

    attention = WrongSplitAttention


class LastNormBert(fused.BERT):
    """A model whose last norm has an epsilon of its own, so that its only result is wrong."""

    def __init__(self, config: fused.Config):
        super().__init__(config)
        self.h[-1].ln_2.eps = 0.05


class PositionsFirstBert(LastNormBert):
    """The same mistake in a model that returns its result with the axis of positions first."""

    def forward(self, idx, segments, mask):
        return super().forward(idx, segments, mask).transpose(0, 1)


class DoubledBert(fused.BERT):
    """A model that returns twice what its last layer computes."""

    def forward(self, idx, segments, mask):
        return 2 * super().forward(idx, segments, mask)


class FirstNormAddedMaskBert(AddedMaskBert):
    """A model that takes a mask to add, and whose embedding norm has an epsilon of its own."""

    def __init__(self, vocab_size, width, num_layers, heads, mlp_width, max_positions):
        super().__init__(vocab_size, width, num_layers, heads, mlp_width, max_positions)
        self.norm.eps = 1e-3


class ScaledLensBert(LensBert):
    """A model whose logits are multiplied by a parameter that BERT does not have."""

    def __init__(self, d_vocab, d_model, n_layers, n_heads, d_mlp, n_ctx):
        super().__init__(d_vocab, d_model, n_layers, n_heads, d_mlp, n_ctx)
        nn.init.constant_(self.logit_scale, 2.0)

    def forward(self, tokens, token_type, mask):
        return super().forward(tokens, token_type, mask) * self.logit_scale
