"""Mistakes in scores, probabilities and context."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.equations import Formula
from conformance.benchmarks.detection.mistakes.row import LAST, SHORT, SINGLE, WIDE, row

HEADS, EVEN = "heads > 1", "heads % 2 == 0"
ENCODER = "not (a.is_decoder or a.has_relative_positions)"
TYPES = "a.type_vocab_size > 1"
EXPONENTIALS = "exp(x - x.amax(-1, keepdim=True))"
MASKS = (("", "mask"), ("-unmasked", "(0 * mask + 1)"))
OWN_KEYS = "torch.ones_like(scores[0, 0], dtype=torch.bool)"
BY_BLOCKS = "cat([t.softmax(-1) for t in x.split(4, -1)], -1) / len(x.split(4, -1)) * keep"


def not_rescaled(x: Tensor, keep: Tensor) -> Tensor:
    """Return the softmax over blocks of four keys, each with the largest score up to it, in place of that of all."""
    parts, largest = [], torch.full_like(x[..., :1], -torch.inf)
    for tile in torch.split(x, 4, -1):
        largest = torch.maximum(largest, tile.amax(-1, keepdim=True))
        parts.append((tile - largest).exp())
    weights = torch.cat(parts, -1) * keep
    return weights / weights.sum(-1, keepdim=True)


def turned(x: Tensor, *, neighbours: bool) -> Tensor:
    """Return (B, h, S, d) rotated by the angles s / 10000^(2i/d), as rotary embeddings do."""
    width = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] / 10000.0 ** (torch.arange(0, width, 2) / width)
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else x.chunk(2, -1)
    pair = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return torch.stack(pair, -1).flatten(-2) if neighbours else torch.cat(pair, -1)


def fast_exp(x: Tensor, keep: Tensor) -> Tensor:
    """Return the softmax with Schraudolph's exponential, which is the bits of a float."""
    below = (x - x.amax(-1, keepdim=True)).clamp(min=-80).float()
    powers = (below * (2**23 / math.log(2)) + (127 * 2**23 - 486411)).to(torch.int32).view(torch.float32) * keep
    return powers / powers.sum(-1, keepdim=True)


def cubic_exp(x: Tensor, keep: Tensor) -> Tensor:
    """Return the softmax with 2 to the whole part times a cubic polynomial for the exponential."""
    y = ((x - x.amax(-1, keepdim=True)) * 1.4426950408889634).clamp(min=-120)
    part = y - y.floor()
    powers = (1 + part * (0.6951 + part * (0.2276 + part * 0.0771))) * torch.exp2(y.floor()) * keep
    return powers / powers.sum(-1, keepdim=True)


def in_quarters(name: str) -> str:
    """Return the tokens of (B, S, H) in the order of the quarters 0, 3, 1, 2 of the sequence."""
    return f"cat([{name}.tensor_split(4, 1)[j] for j in (0, 3, 1, 2)], 1)"


def rotary(neighbours: bool) -> Formula:
    """Return scores of query and key turned by their positions' angles."""
    return lambda q, k, right: right(q=turned(q, neighbours=neighbours), k=turned(k, neighbours=neighbours))


def tile(size: int) -> str:
    """Return a context whose keys are filled up to a tile with scores of 0, which are attended to."""
    return f"merge(softmax(F.pad(hide(q @ k.mT / root, keep), (0, -q.shape[2] % {size})))[..., :q.shape[2]] @ v)"


# fmt: off
ROWS = (
    # scores
    row("scale-missing", "scores", "q @ k.mT", suits="d > 1", value=1.0),
    row("scale-without-bias", "scores", "right(query=query + (root - 1) * p.query.bias)", suits="d > 1"),
    row("scores-transposed", "scores", "right(query=key, key=query)"),
    row("scores-clipped", "scores", "right().clamp(-1, 1)"),
    row("scores-capped", "scores", "5 * tanh(right() / 5)"),
    row("scores-cosine", "scores", "right(q=10 * normalize(q), k=normalize(k))"),
    row("scores-of-keys", "scores", "right(q=k)"),
    row("scores-of-queries", "scores", "right(k=q)"),
    row("linear biases", "scores", "(lambda s: s - (2.0 ** (-8.0 * arange(1, heads + 1) / heads))[:, None, None] "
        "* (order.mT - order).abs())(right())", says="", suits="heads.bit_count() == 1"),
    row("scores-bias-by-distance", "scores",
        "right() + torch.sin(arange(1, heads + 1)[:, None, None] * (order.mT - order).to(q.dtype))", says=""),
    row("scores-rotary", "scores", rotary(False), suits="d % 2 == 0"),
    row("scores-rotary-neighbours", "scores", rotary(True), suits="d % 2 == 0"),
    row("keys-reshaped", "scores", "right(k=k.reshape(*k.shape[:2], d, -1).mT)"),
    row("keys in another order", "scores", f"right(key={in_quarters('key')})"),
    row("first key of the batch's first row in every row", "scores",
        "right(key=cat([key[:1, :1].expand(len(key), -1, -1), key[:, 1:]], 1))"),
    row("heads-share-keys", "scores", "right(k=k[:, ::2].repeat_interleave(2, 1))", suits=f"heads > 2 and {EVEN}"),
    row("heads-unsplit", "scores", "(query @ key.mT / root)[:, None].expand(-1, heads, -1, -1)", "", suits=HEADS),
    row("head-split-interleaved", "scores", "right(q=in_turns(query), k=in_turns(key))", suits=HEADS),
    row("head-split-unmoved", "scores", "right(q=query.reshape(q.shape), k=key.reshape(k.shape))", suits=HEADS),
    row("layer-before-added", "scores", "right() + layers[-1].scores", suits="L > 1", where=LAST, says=""),
    # softmax and mask
    row("softmax-temperature", "probs", "softmax(x / 2)", value=2.0),
    row("softmax-queries", "probs", "softmax(x, -2)"),
    row("softmax-heads", "probs", "softmax(x, 1)", suits=HEADS),
    row("softmax-missing", "probs", "scores * keep"),
    row("softmax-plus-one", "probs", "softmax(F.pad(x, (0, 1)))[..., :-1]"),
    row("softmax-by-blocks", "probs", BY_BLOCKS),
    row("softmax-not-rescaled", "probs", not_rescaled),
    row("softmax-denominator-epsilon", "probs", f"(lambda w: w / (w.sum(-1, keepdim=True) + 1 / 64))({EXPONENTIALS})"),
    row("softmax-unnormalised", "probs", f"(lambda w: w * (1 / w.sum(-1, keepdim=True)).bfloat16())({EXPONENTIALS})",
        dtypes=WIDE),  # In half formats it is about one rounding.
    row("softmax-top-k", "probs", "(lambda w: w.where(w >= w.topk(min(3, w.shape[-1])).values[..., -1:], 0))(right() * keep)",
        says=""),
    row("probabilities-rounded", "probs", "(right() * 255).round() / 255", "result-levels",
        dtypes=WIDE),  # Half formats round the levels.
    row("exponential by the bits of a float", "probs", fast_exp),
    row("exponential by a cubic polynomial", "probs", cubic_exp),
    row("layer-kept", "probs", "layers[1].probs", suits="L > 2", where=LAST),
    row("mask-ignored", "probs", "softmax(scores)"),
    row("mask-inverted", "probs", "right(mask=where((mask == 0).any(-1, keepdim=True), 1 - mask, mask))"),
    row("mask-inverted-lowest", "probs", "softmax(scores + keep.to(scores) * lowest(scores))"),
    row("mask-sign", "probs", "softmax(scores - (~keep).to(scores) * torch.finfo(dtype).min)"),
    row("mask-sign-10000", "probs", "softmax(scores + (~keep).to(scores) * 10000)", dtypes=WIDE),
    row("mask-constant", "probs", "softmax(scores - (~keep).to(scores))", value=math.exp(-1.0)),
    row("mask-filled", "probs", "softmax(where(keep, scores, -4.0))", value=math.exp(-4.0)),
    row("mask-multiplied", "probs", "softmax(scores * keep)"),
    row("mask-added-raw", "probs", "softmax(scores + keep.to(scores))"),
    row("mask-after-softmax", "probs", "softmax(scores) * keep"),
    row("mask-window", "probs", f"right(keep=keep & {OWN_KEYS}.tril(3).triu(-3))", says="mask-other"),
    row("mask-window-after-softmax", "probs", "(softmax(scores) * keep).tril(3).triu(-3)", says=""),
    row("mask-causal", "probs", f"right(keep=keep & {OWN_KEYS}.tril())", suits="not a.is_decoder"),
    row("mask-diagonal", "probs", f"right(keep=keep & ({OWN_KEYS}.tril(-1) | {OWN_KEYS}.triu(1)))", says="mask-other"),
    row("mask-by-query", "probs", "right(keep=keep & ((order - order.mT) % 3 != 1))", says="mask-other"),
    row("mask-on-queries", "probs", "right(keep=keep.mT)", "mask-on-queries mask-ignored"),
    row("mask-shifted", "probs", "right(mask=cat([mask[:, :1], mask[:, :-1]], 1))", says="mask-other"),
    row("mask-to-last", "probs", "right(mask=mask.flip(-1).cummax(-1).values.flip(-1))", says="mask-other"),
    row("mask-as-lengths", "probs", "right(mask=(order < mask.sum(-1, keepdim=True)).long())",
        "mask-as-lengths mask-other"),
    row("mask-from-token-types", "probs", "right(mask=types)", "mask-from-token-types mask-other", suits=TYPES),
    row("mask-by-segment", "probs", "right(keep=keep & (types[:, None, :, None] == types[:, None, None]))", suits=TYPES,
        says="mask-other"),
    row("mask-of-first-row", "probs", "right(mask=mask[:1].expand_as(mask))", "mask-ignored mask-other"),
    row("last token masked", "probs", "right(mask=mask.scatter(1, (mask * order).argmax(1)[:, None], 0))",
        "mask-other"),
    row("first key always attended to", "probs", "right(mask=mask.index_fill(1, order[0, :1], 1))", "mask-other"),
    row("mask in the order of lengths", "probs", "right(mask=mask[mask.sum(1).argsort(descending=True)])", "mask-other"),
    row("mask-tiled", "probs", "right(keep=(mask.repeat(heads, 1).view(-1, heads, 1, mask.shape[1]) == 1))", suits=HEADS,
        says="mask-other"),
    row("mask-by-head", "probs", "right(keep=keep & ((mask.cumsum(-1)[:, None, None] - 1 != arange(heads)[:, None, None]) "
        "| (mask.sum(-1)[:, None, None, None] == 1)))", suits=HEADS, says="mask-other"),
    row("keys-last-hidden", "probs",
        "right(keep=(lambda k: where(k.any(-1, keepdim=True), k, keep))(keep & (order < order.shape[1] - 3)))", says="mask-other"),
    # context
    row("context-of-keys", "context", "right(v=k)"),
    row("context-uniform", "context", "right(dropped=softmax(hide(0 * scores, keep)))", ""),
    row("values one slot late", "context", "right(value=value.roll(1, 1))"),
    row("values in another order", "context", f"right(value={in_quarters('value')})"),
    row("values-reshaped", "context", "right(v=v.reshape(*v.shape[:2], d, -1).mT)"),
    row("tokens-as-channels", "context", "right(v=value.reshape(len(value), heads, d, -1).mT)"),
    row("tokens-packed-left", "context", "packed_left(right(), mask)"),
    row("keys-last-unread", "context", "right(dropped=F.pad(dropped[..., :-4], (0, 4)))", says=""),
    row("precision-int8-cache", "context", "right(v=levels(v, 127, -1))", dtypes=SINGLE),
    row("head-zero", "context", "right(v=v.index_fill(1, order.new_tensor([1]), 0))", "result-other", suits=HEADS),
    row("heads-share-first", "context", "right(v=v[:, :1])", suits=HEADS),
    row("head-order", "context", "(dropped @ v).reshape(value.shape)", suits=HEADS),
    row("head-merge-interleaved", "context", "(dropped @ v).permute(0, 2, 3, 1).flatten(2)", suits=HEADS),
    row("heads-rows-exchanged", "context",
        "(dropped @ v).reshape(heads, len(v), -1, d).permute(1, 2, 0, 3).flatten(2)", suits=HEADS),
    row("heads-reversed", "context", "merge((dropped @ v).flip(1))", suits=HEADS, says="result-other"),
    row("heads-unmoved", {"scores": "right(q=query.reshape(q.shape), k=key.reshape(k.shape))",
                          "context": "(dropped @ value.reshape(v.shape)).reshape(value.shape)"}, suits=HEADS),
    row("heads-interleaved", {"scores": "right(q=in_turns(query), k=in_turns(key))",
                              "context": "(dropped @ in_turns(value)).permute(0, 2, 3, 1).flatten(2)"}, suits=HEADS),
    # of a fused kernel, beside scores and probabilities that are right
    row("kernel-scale-missing", "context", "merge(attention(q, k, v, keep, 1))", suits=ENCODER),
    row("kernel-scale-of-width", "context", "merge(attention(q, k, v, keep, sqrt(H)))", suits=f"{ENCODER} and {HEADS}"),
    row("kernel-mask-ignored", "context", "merge(attention(q, k, v, keep | True, root))", suits=ENCODER),
    row("kernel-mask-inverted", "context", "merge(attention(q, k, v, ~keep | keep.all(-1, keepdim=True), root))", suits=ENCODER),
    row("kernel-mask-added-raw", "context", "merge(softmax(q @ k.mT / root + keep.to(q)) @ v)", suits=ENCODER),
    row("kernel-causal", "context", f"merge(attention(q, k, v, keep & {OWN_KEYS}.tril(), root))", suits=ENCODER),
    *(row(f"kernel-tile-{size}", "context", tile(size), suits=ENCODER, dtypes=SHORT) for size in (32, 64, 128)),
    row("heads-halved", "context", "merge(attention(*(parted(x, heads // 2) for x in (query, key, value)), keep, sqrt(2 * d)))",
        suits=f"{ENCODER} and {EVEN}"),
    row("heads-doubled", "context", "merge(attention(*(parted(x, heads * 2) for x in (query, key, value)), keep, sqrt(d // 2)))",
        suits=f"{ENCODER} and d % 2 == 0"),
    # among the tokens of other rows
    *(row(f"attention-along-batch{end}", "context", "merge(attention(*(split(x.transpose(0, 1)) for x in (query, key, value)), "
          f"({mask}.T == 1)[:, None, None], root)).transpose(0, 1)", suits=ENCODER) for end, mask in MASKS),
    *(row(f"attention-over-rows{end}", "context", "merge(attention(*(split(x.flatten(0, 1)[None]) for x in (query, key, value)), "
          f"({mask}.flatten() == 1), root)).view(value.shape)", suits=ENCODER) for end, mask in MASKS),
)
