"""Variants of attention."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.benchmarks.detection.bert import changed
from conformance.benchmarks.detection.equations import Expression
from conformance.benchmarks.detection.tools import hide
from conformance.benchmarks.detection.variant import HALVES, WIDE, Variant, variant, variants

# Softmax of scores, by the keys to keep.
NATIVE_SOFTMAX = "(lambda w: w / w.sum(-1, keepdim=True))(exp(scores - x.amax(-1, keepdim=True)).masked_fill(~keep, 0))"
RECIPROCAL = "(lambda w: w * (1 / w.sum(-1, keepdim=True)))(exp(scores - x.amax(-1, keepdim=True)).masked_fill(~keep, 0))"
INFINITE = "softmax(scores.masked_fill(~keep, -inf))"


def unmasked_keys_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Compute each row of the batch over its attended keys only, and set all others to zero."""
    probs = torch.zeros_like(scores)
    for row, mask in enumerate(keep.expand(len(scores), 1, 1, scores.shape[-1])[:, 0, 0]):
        if mask.any():
            probs[row][..., mask] = torch.softmax(scores[row][..., mask], -1)
        else:  # undefined for a row without tokens
            probs[row] = 1.0 / scores.shape[-1]
    return probs


def base_two_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Compute the exponentials as powers of two."""
    masked = scores.masked_fill(~keep, -math.inf)
    weights = torch.exp2((masked - masked.amax(-1, keepdim=True)) * math.log2(math.e))
    return weights / weights.sum(-1, keepdim=True)


# Fused attention of split q, k and v, by the keys to keep.
def divided_afterwards(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiply exponentials by values in the format of the values, then divide by their sum in float32, as a fused kernel does."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    logits = (q.to(dtype) @ k.to(dtype).mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf)
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    mixed = weights.to(v.dtype).to(dtype) @ v.to(dtype)
    return (mixed / weights.sum(-1, keepdim=True)).to(v.dtype).transpose(1, 2).flatten(2)


def online(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Process blocks of five keys with a running maximum and a running sum."""
    mixed, total = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    largest = torch.full_like(total, torch.finfo(q.dtype).min)
    for block in torch.split(torch.arange(k.shape[-2], device=k.device), 5):
        logits = hide(q @ k[:, :, block].mT / math.sqrt(q.shape[-1]), keep[..., block])
        risen = torch.maximum(largest, logits.amax(-1, keepdim=True))
        weights = torch.exp(logits - risen) * keep[..., block]
        kept = torch.exp(largest - risen)
        mixed, total = mixed * kept + weights @ v[:, :, block], total * kept + weights.sum(-1, keepdim=True)
        largest = risen
    return (mixed / total).transpose(1, 2).flatten(2)


def two_halves(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Process two halves of the keys as on two devices, each with its logsumexp, and merge them."""
    halves = []
    for part in torch.arange(k.shape[-2]).tensor_split(2):
        logits = hide(q @ k[:, :, part].mT / math.sqrt(q.shape[-1]), keep[..., part])
        halves.append((torch.softmax(logits, -1) @ v[:, :, part], torch.logsumexp(logits, -1, keepdim=True)))
    (first, a), (second, b) = halves
    of_first, of_second = torch.exp(a - torch.maximum(a, b)), torch.exp(b - torch.maximum(a, b))
    return ((first * of_first + second * of_second) / (of_first + of_second)).transpose(1, 2).flatten(2)


SDPA = "merge(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))"
SDPA_ADDED = (
    "merge(F.scaled_dot_product_attention(q, k, v, attn_mask="
    "torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, lowest(q)).expand(-1, -1, q.shape[2], -1)))"
)
SDPA_PADDED = (
    "merge(F.scaled_dot_product_attention(*(F.pad(y, (0, -d % 32)) for y in (q, k, v)), attn_mask=keep, scale=d**-0.5)[..., :d])"
)
TWO_PASS = "merge((lambda s: exp(s - torch.logsumexp(s, -1, keepdim=True)))((q @ k.mT / root).masked_fill(~keep, -inf)) @ v)"
BATCHED = "torch.baddbmm(q.new_zeros(()), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.0, alpha=d**-0.5).view(*q.shape[:-1], -1)"
SCALED_FIRST = (
    "(lambda t: (lambda w: w / w.sum(-1, keepdim=True))(torch.exp2(t - t.amax(-1, keepdim=True))))"
    "(scores.masked_fill(~keep, -inf) * (1 / log(2)))"
)
INNER = ("self.scores", "self.probs", "self.dropout")


def fused(*expressions: Expression, wide: bool = False) -> Variant:
    """Return a variant that computes attention as a whole, and exposes neither scores nor probabilities."""
    return variant("context", *expressions, wide=wide, hides=INNER)


ATTENTION: Mapping[str, Variant] = {
    "softmax, every operation rounded": variant("probs", NATIVE_SOFTMAX),
    "softmax with a reciprocal": variant("probs", RECIPROCAL),
    "softmax by logsumexp": variant(
        "probs", "(lambda s: exp(s - torch.logsumexp(s, -1, keepdim=True)))(scores.masked_fill(~keep, -inf))", wide=True
    ),
    "softmax as the exponential of its logarithm": variant("probs", "exp(log_softmax(scores.masked_fill(~keep, -inf)))", wide=True),
    "softmax to base two": variant("probs", base_two_softmax, wide=True),
    "softmax to base two, scaled before the shift": variant("probs", SCALED_FIRST, wide=True),
    "softmax to base two, every operation rounded": variant("probs", base_two_softmax, dtypes=HALVES),
    "softmax of shifted scores": variant("probs", "softmax(x - x.amax(-1, keepdim=True))"),
    "softmax of unshifted scores, float32": variant(
        "probs", "(lambda w: w / w.sum(-1, keepdim=True))(exp(scores) * keep)", wide=True
    ),
    "softmax normalised by torch": variant(
        "probs", "F.normalize(exp(x - x.amax(-1, keepdim=True)) * keep, p=1.0, dim=-1)", wide=True
    ),
    "softmax in float64": variant("probs", "softmax(scores.double().masked_fill(~keep, -inf)).to(scores.dtype)"),
    "softmax in float32 by its argument": variant("probs", "torch.softmax(x, -1, dtype=widened(x).dtype).to(x.dtype)"),
    "softmax of unmasked keys alone": variant("probs", unmasked_keys_softmax),
    "mask of minus infinity": variant("probs", INFINITE),
    "mask of half the least number": variant("probs", "softmax(scores.masked_fill(~keep, lowest(scores) / 2))"),
    "mask of −10000, added in float32": variant("probs", "softmax(scores + (~keep).to(scores) * -10000)", wide=True),
    "mask of the least number, added": variant("probs", "softmax(scores + (~keep).to(scores) * lowest(scores))"),
    "scores shown with the mask": variant("scores", "right().masked_fill(~keep, -inf)"),
    "query scaled before the product": variant("scores", "(q * d**-0.5) @ k.mT"),
    "key scaled before the product": variant("scores", "q @ (k * d**-0.5).mT"),
    "query and key scaled by the fourth root": variant("scores", "(q * d**-0.25) @ (k * d**-0.25).mT", hides=("scores",)),
    "scale in the query's parameters": variants(
        (changed("query", "right(weight=weight * (1 / root), bias=bias * (1 / root))"), changed("scores", "q @ k.mT")),
        hides=("query",),
        dtypes=WIDE,
    ),
    "scores in one batch of heads": variant("scores", BATCHED),
    "scores and contexts transposed": variants(
        (changed("scores", "(k @ q.mT).mT * d**-0.5"), changed("context", "merge((v.mT @ dropped.mT).mT)"))
    ),
    "scores as sums of elementwise products": variant("scores", "(q[:, :, :, None] * k[:, :, None]).sum(-1) * d**-0.5", wide=True),
    "contexts over blocks of keys": variant(
        "context", "merge(sum(a @ b for a, b in zip(dropped.split(3, -1), v.split(3, 2))))", wide=True
    ),
    "a head at a time": variants(
        (
            changed("scores", "torch.stack([q[:, j] @ k[:, j].mT / root for j in range(heads)], 1)"),
            changed("context", "merge(torch.stack([dropped[:, j] @ v[:, j] for j in range(heads)], 1))"),
        )
    ),
    "einsum": variants(
        (
            changed("scores", "torch.einsum('bhqd,bhkd->bhqk', q, k) * d**-0.5"),
            changed("context", "merge(torch.einsum('bhqk,bhkd->bhqd', dropped, v))"),
        )
    ),
    "torch's own attention": fused(SDPA),
    "torch's own attention, additive mask": fused(SDPA_ADDED),
    "torch's own attention, padded heads": fused(SDPA_PADDED),
    "torch's own attention in float64": fused(
        "merge(F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=keep)).to(v.dtype)"
    ),
    "torch's own attention, a query at a time": fused(
        "merge(cat([F.scaled_dot_product_attention(t, k, v, attn_mask=keep) for t in q.split(1, 2)], 2))"
    ),
    "softmax divided after the values": fused(divided_afterwards),
    "softmax online, over blocks of keys": fused(online, wide=True),
    "softmax online, from the last key": fused(lambda q, k, v, keep: online(q, k.flip(-2), v.flip(-2), keep.flip(-1)), wide=True),
    "softmax in two passes": fused(TWO_PASS, wide=True),
    "softmax of two halves, merged": fused(two_halves, wide=True),
}
