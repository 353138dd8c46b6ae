"""Mistakes between the projections and the context."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, context, probs, scores

_SCORES = ("attention.self.scores",)
_PROBS = ("attention.self.probs",)
_CONTEXT = ("attention.self.context",)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * rates
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _rotary(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    product = _rotated(port.split(query)) @ _rotated(port.split(key)).transpose(-1, -2)
    return product / math.sqrt(port.architecture.head_size)


def _distances(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    heads, at = port.architecture.num_attention_heads, torch.arange(query.shape[1])
    slopes = 2.0 ** (-8 * (torch.arange(heads) + 1) / heads)
    bias = slopes[:, None, None] * (at[:, None] - at).abs()
    return scores(port, layer, query, key) - bias.to(query.dtype)


def _capped(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return (scores(port, layer, query, key) / 50).tanh() * 50


def _of_padded_heads(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(128)


def _exchanged(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, key, query)


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _masked(x, mask).softmax(1)


def _in_tiles(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    shifted = x.masked_fill(mask[:, None, None] == 0, -math.inf)
    tiles = shifted.reshape(*shifted.shape[:-1], -1, 4)
    greatest = tiles.amax(-1, keepdim=True).cummax(-2).values.clamp(min=torch.finfo(x.dtype).min)
    weights: Tensor = (tiles - greatest).exp().flatten(-2)
    return weights / weights.sum(-1, keepdim=True)


def _whole_tiles(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    kept = torch.arange(mask.shape[1]) < mask.shape[1] // 3 * 3
    return probs(port, layer, x, mask * kept)


def _not_transposed(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape(value.shape)


def _one_slot_late(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return context(port, layer, weights, value.roll(1, 1))


def _first_row(port: Port, layer: int, hidden: Tensor) -> Tensor:
    return OPERATIONS["value"](port, layer, hidden)[:1].expand_as(hidden)


def _without_a_head(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    kept = torch.ones(port.architecture.num_attention_heads, dtype=weights.dtype)
    kept[1] = 0
    return context(port, layer, weights * kept[:, None, None], value)


def _dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.1
    return x * kept / 0.9


def _cached(part: str) -> Operation:
    """The key or the value of the layer before."""
    return lambda port, layer, hidden: port.found[f"encoder.layer.{layer - 1}.attention.self.{part}"]


MISTAKES = (
    Mistake(
        "rotary on top of learned positions",
        "Queries and keys are rotated by their positions, which the embeddings have already.",
        "a graph of ModernBERT or NomicBERT that is used for a BERT",
        "all",
        _SCORES,
        "says that queries and keys are rotated",
        {"scores": _rotary},
    ),
    Mistake(
        "distance bias left on",
        "A bias that falls linearly with the distance is added to the scores.",
        "MosaicBERT or Jina's BERT, with ALiBi, loaded with the weights of a BERT",
        "all",
        _SCORES,
        "says that the scores have a bias by distance",
        {"scores": _distances},
    ),
    Mistake(
        "scores capped",
        "Scores s become 50 tanh(s / 50).",
        "a flexible attention kernel with the soft cap of Gemma left on",
        "all",
        _SCORES,
        "says that large scores are too small, as from a tanh",
        {"scores": _capped},
    ),
    Mistake(
        "scale of the padded head",
        "Scores are divided by √128, to which the kernel pads the heads.",
        "an adaptor to a TPU kernel that pads heads to 128 lanes and computes its default scale after that",
        "all",
        _SCORES,
        "says that the scale is of another head size, 128",
        {"scores": _of_padded_heads},
    ),
    Mistake(
        "scores transposed",
        "The score of query i and key j is that of query j and key i.",
        "an einsum with the letters of the two sequences exchanged, bhqd,bhkd->bhkq",
        "first",
        _SCORES,
        "says that query and key are exchanged in the product",
        {"scores": _exchanged},
    ),
    Mistake(
        "softmax over heads",
        "The softmax is over the heads, not over the keys.",
        "a functional softmax without a dimension, which takes dimension 1 of four",
        "first",
        _PROBS,
        "says that the softmax is over heads",
        {"probs": _over_heads},
    ),
    Mistake(
        "running maximum without rescaling",
        "Tiles of 4 keys are exponentiated relative to the greatest score so far, and earlier tiles are not rescaled.",
        "a handwritten flash attention",
        "all",
        _PROBS,
        "says that the probabilities of early keys are too large by a factor for each tile",
        {"probs": _in_tiles},
    ),
    Mistake(
        "rest of the keys dropped",
        "Keys beyond a whole number of tiles, of 3 keys, are not attended to.",
        "a kernel whose loop is over S // BLOCK tiles",
        "last",
        _PROBS,
        "says that the last keys of a row are not attended to",
        {"probs": _whole_tiles},
    ),
    Mistake(
        "heads not transposed back",
        "The context (B, h, S, d) is read as (B, S, H) without a transpose.",
        "a view, made to work by reshape",
        "all",
        _CONTEXT,
        "says that heads and tokens are mixed up for want of a transpose",
        {"context": _not_transposed},
    ),
    Mistake(
        "values one slot late",
        "Each probability is multiplied by the value of the token before.",
        "a paged cache whose slots of values are off by one",
        "all",
        _CONTEXT,
        "says that values are of the token before",
        {"context": _one_slot_late},
    ),
    Mistake(
        "keys and values of the layer before",
        "Keys and values are those of the layer before.",
        "a cache that is indexed by layer before it is written",
        "later",
        ("attention.self.key", "attention.self.value"),
        "says that keys and values are those of the layer before",
        {part: _cached(part) for part in ("key", "value")},
    ),
    Mistake(
        "first row's values",
        "All rows have the values of the first.",
        "a prefix cache that is expanded over the batch",
        "last",
        ("attention.self.value",),
        "says that the first row's values are used for all rows",
        {"value": _first_row},
    ),
    Mistake(
        "a head masked",
        "The second head contributes nothing to the context.",
        "a head mask from a study of pruning, saved with the config",
        "some",
        _CONTEXT,
        "says that one head is zero, or left out",
        {"context": _without_a_head},
    ),
    Mistake(
        "dropout with a fixed seed",
        "Attention dropout of 0.1 is active, with the same seed at every call.",
        "an export in training mode, or a fused attention whose dropout_p does not follow the mode",
        "all",
        ("attention.self.dropout",),
        "says that dropout is active",
        {"attention_dropout": _dropped},
    ),
)
