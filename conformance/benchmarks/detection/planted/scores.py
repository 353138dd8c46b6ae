"""Mistakes in scores, probabilities and context that are made in shared attention code, in tiled kernels, or by quantization."""

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import Options, Plant, after, in_layer, override
from conformance.benchmarks.detection.steps import hidden_keys

SCORES, PROBS, CONTEXT = (f"attention.self.{n}" for n in ("scores", "probs", "context"))
TILE = 4


def _own(model: Bert, layer: int) -> SelfAttention:
    return model.layer(layer).attention.self


def _product(name: str, description: str, of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Plant:
    """Return a mistake in which the scores are those of other operands, (B, h, S, d) each."""

    def install(model: Bert, layer: int) -> None:
        scores = _own(model, layer).scores
        right = scores.product
        override(scores, "product", lambda query, key: right(*of(query, key)))

    return in_layer(name, description, install, SCORES)


def _capped(model: Bert, layer: int) -> None:
    """Cap the scores smoothly at 5."""
    after(_own(model, layer).scores, lambda s: 5.0 * (s / 5.0).tanh())


def _reshaped(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return query, key.reshape(*key.shape[:2], key.shape[3], key.shape[2]).transpose(-1, -2)


def _cosine(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return 10.0 * F.normalize(query, dim=-1), F.normalize(key, dim=-1)


def _shared(model: Bert, layer: int) -> None:
    """Let two heads use the keys of the first of them."""
    scores = _own(model, layer).scores
    right = scores.product
    override(scores, "product", lambda query, key: right(query, key[:, ::2].repeat_interleave(2, 1)))


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return hidden_keys(scores, mask[:, None, None, :] == 1)


def _by_blocks(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax of each four keys, and average."""
    tiles = torch.split(_masked(scores, mask), TILE, -1)
    every = torch.cat([tile.softmax(-1) for tile in tiles], -1) / len(tiles)
    return every * mask[:, None, None, :].to(scores.dtype)


def _not_rescaled(scores: Tensor, mask: Tensor) -> Tensor:
    """Let each four keys keep the largest score up to them, in at least float32, and round once."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    found, largest = [], torch.full_like(wide[..., :1], -torch.inf)
    for tile in torch.split(_masked(wide, mask), TILE, -1):
        largest = torch.maximum(largest, tile.amax(-1, keepdim=True))
        found.append((tile - largest).exp())
    weights = torch.cat(found, -1) * mask[:, None, None, :].to(wide.dtype)
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)


def _guarded(scores: Tensor, mask: Tensor) -> Tensor:
    """Add 1/64 to the denominator, in at least float32, and round once."""
    masked = _masked(scores.to(torch.promote_types(scores.dtype, torch.float32)), mask)
    weights = (masked - masked.amax(-1, keepdim=True)).exp()
    return (weights / (weights.sum(-1, keepdim=True) + 1.0 / 64.0)).to(scores.dtype)


def _divided_coarsely(scores: Tensor, mask: Tensor) -> Tensor:
    """Multiply by a reciprocal of the denominator that is rounded to bfloat16."""
    masked = _masked(scores.to(torch.promote_types(scores.dtype, torch.float32)), mask)
    weights = (masked - masked.amax(-1, keepdim=True)).exp()
    by = (1.0 / weights.sum(-1, keepdim=True)).to(torch.bfloat16)
    return (weights * by.to(weights.dtype)).to(scores.dtype)


def _rounded(scores: Tensor, mask: Tensor) -> Tensor:
    """Round the probabilities to multiples of 1/255."""
    return _masked(scores, mask).softmax(-1).mul(255.0).round() / 255.0


def _greatest(scores: Tensor, mask: Tensor) -> Tensor:
    """Keep the three greatest probabilities of a query, as they are."""
    found = _masked(scores, mask).softmax(-1) * mask[:, None, None, :].to(scores.dtype)
    return found.where(found >= found.topk(min(3, found.shape[-1])).values[..., -1:], 0.0)


def _filled(scores: Tensor, mask: Tensor) -> Tensor:
    """Replace masked scores by −4."""
    return torch.where(mask[:, None, None, :] == 1, scores, -4.0).softmax(-1)


def _windowed(scores: Tensor, mask: Tensor) -> Tensor:
    """Set probabilities of padding, and of keys more than three tokens away, to zero after a softmax over all keys."""
    found = scores.softmax(-1) * mask[:, None, None, :].to(scores.dtype)
    return found.tril(3).triu(-3)


def _by_query(scores: Tensor, mask: Tensor) -> Tensor:
    """Hide every third key from query i, counted from key i + 1."""
    index = torch.arange(scores.shape[-1])
    attended = (index[None, :] - index[:, None]) % 3 != 1
    return hidden_keys(scores, (mask[:, None, None, :] == 1) & attended).softmax(-1)


def _last_hidden(scores: Tensor, mask: Tensor) -> Tensor:
    attended = torch.arange(scores.shape[-1]) < scores.shape[-1] - 3
    keys = (mask[:, None, None, :] == 1) & attended
    return hidden_keys(scores, torch.where(keys.any(-1, keepdim=True), keys, mask[:, None, None, :] == 1)).softmax(-1)


def _by_segment(model: Bert, layer: int) -> None:
    """Hide the keys of another token type."""
    types: list[Tensor] = []
    model.embeddings.register_forward_pre_hook(lambda _, inputs: types.append(inputs[0].types))

    def forward(scores: Tensor, mask: Tensor) -> Tensor:
        own = types[-1]
        keys = (mask[:, None, None, :] == 1) & (own[:, None, :, None] == own[:, None, None, :])
        return hidden_keys(scores, keys).softmax(-1)

    override(_own(model, layer).probs, "forward", forward)


def _bytes(value: Tensor) -> Tensor:
    """Round to 255 levels for each token and head."""
    level = value.abs().amax(-1, keepdim=True) / 127
    return torch.round(value / level) * level


def _values(name: str, description: str, of: Callable[[Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    """Return a mistake in which the context is that of other values, (B, h, S, d)."""

    def install(model: Bert, layer: int) -> None:
        context = _own(model, layer).context
        right = context.product
        override(context, "product", lambda probs, value: right(probs, of(value)))

    return in_layer(name, description, install, CONTEXT, **options)


def _as_channels(model: Bert, layer: int) -> None:
    """Read the memory of the values, (B, S, H), as (B, h, d, S)."""
    context = _own(model, layer).context
    override(context, "split", lambda x: x.reshape(len(x), context.heads, -1, x.shape[1]).transpose(-1, -2))


def _packed_left(model: Bert, layer: int) -> None:
    """Write the context of the unmasked tokens to the beginning of each row."""
    own, masks = _own(model, layer), list[Tensor]()
    own.register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))

    def packed(right: Tensor) -> Tensor:
        left = torch.zeros_like(right)
        for row, mask in enumerate(masks.pop() == 1):
            left[row, : int(mask.sum())] = right[row, mask]
        return left

    after(own.context, packed)


def _unread(model: Bert, layer: int) -> None:
    """Leave out the last four keys."""
    context = _own(model, layer).context
    right = context.forward
    override(context, "forward", lambda probs, value: right(torch.cat([probs[..., :-4], 0.0 * probs[..., -4:]], -1), value))


def _softmax(name: str, description: str, wrong: Callable[[Tensor, Tensor], Tensor], **options: Unpack[Options]) -> Plant:
    return in_layer(name, description, lambda model, layer: override(_own(model, layer).probs, "forward", wrong), PROBS, **options)


PLANTS = (
    in_layer("scores-capped", "5 · tanh(s / 5)", _capped, SCORES),
    _product("scores-cosine", "10 times the cosine of query and key, over √d", _cosine),
    _product("keys-reshaped", "keys (S, d) reshaped to (d, S)", _reshaped),
    _product("scores-of-keys", "k kᵀ / √d", lambda query, key: (key, key)),
    _product("scores-of-queries", "q qᵀ / √d", lambda query, key: (query, query)),
    in_layer("heads-share-keys", "two heads have the keys of the first of them",
             _shared, SCORES, suits=lambda a: a.num_attention_heads > 2 and a.num_attention_heads % 2 == 0),
    _softmax("mask-by-query", "every third key is hidden from query i, counted from key i + 1", _by_query),
    in_layer("mask-by-segment", "keys of another token type are hidden",
             _by_segment, PROBS, suits=lambda a: a.type_vocab_size > 1),
    _values("values-reshaped", "the values of a head, (S, d), are read as (d, S)", lambda value: _reshaped(value, value)[1]),
    _values("precision-int8-cache", "values rounded to 255 levels for each token and head", _bytes, dtypes=("float32",)),
    in_layer("tokens-as-channels", "the memory of the values, (S, H), is read as (H, S)", _as_channels, CONTEXT),
    in_layer("tokens-packed-left", "the context of the unmasked tokens of a row is written to its beginning",
             _packed_left, CONTEXT),
    _softmax("keys-last-hidden", "the last three keys are hidden", _last_hidden),
    in_layer("keys-last-unread", "the context lacks the last four keys", _unread, CONTEXT),
    _softmax("softmax-by-blocks", "the softmax of each four keys, divided by the number of blocks", _by_blocks),
    _softmax("softmax-not-rescaled", "each block of four keys keeps the maximum up to it", _not_rescaled),
    _softmax("softmax-denominator-epsilon", "exp(s − m) / (1/64 + Σ exp(s − m))", _guarded),
    _softmax("softmax-unnormalised", "the reciprocal of the denominator is rounded to bfloat16",
             _divided_coarsely, dtypes=("float64", "float32")),  # In half formats it is about one rounding.
    _softmax("probabilities-rounded", "the probabilities are rounded to multiples of 1/255",
             _rounded, dtypes=("float64", "float32")),  # Shorter formats round the levels themselves.
    _softmax("softmax-top-k", "all but the three greatest probabilities of a query are zero", _greatest),
    _softmax("mask-filled", "masked scores are replaced by −4", _filled, value=-4.0),
    _softmax("mask-window-after-softmax", "the softmax is over all keys; padding, and keys more than 3 away, then get 0",
             _windowed),
)  # fmt: skip
