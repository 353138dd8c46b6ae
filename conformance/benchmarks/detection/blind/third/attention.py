"""Mistakes in the scores and in the context: scales, heads, positions, tiles."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, scores
from conformance.benchmarks.detection.blind.third.tools import kept

_SCORES = ("attention.self.scores",)
_DROPOUT = ("attention.self.dropout",)
_CONTEXT = ("attention.self.context",)


def _product(port: Port, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2)


def _alibi(port: Port, length: int, like: Tensor) -> Tensor:
    heads = port.architecture.num_attention_heads
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    places = torch.arange(length)
    return (-slopes[:, None, None] * (places[:, None] - places).abs()).to(like.dtype)


def _root_of_width(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _product(port, query, key) / math.sqrt(port.architecture.hidden_size)


def _scaled_twice(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key) / math.sqrt(port.architecture.head_size)


def _short_scale(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _product(port, query, key) * float(torch.tensor(1 / math.sqrt(port.architecture.head_size)).bfloat16())


def _capped(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return 50 * (scores(port, layer, query, key) / 50).tanh()


def _biased(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key) + _alibi(port, query.shape[1], query)


def _biased_unscaled(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _product(port, query, key) + _alibi(port, query.shape[1], query)


def _turned(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _rotary(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    turned = _turned(port.split(query), 10000.0) @ _turned(port.split(key), 10000.0).transpose(-1, -2)
    return turned / math.sqrt(port.architecture.head_size)


def _shared_keys(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    grouped = port.split(key)[:, ::2].repeat_interleave(2, 1)
    return port.split(query) @ grouped.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _cosine(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    q, k = (F.normalize(port.split(x), dim=-1) for x in (query, key))
    return q @ k.transpose(-1, -2) * 10


def _keys_with_themselves(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, key, key)


def _exchanged(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, key, query)


def _stale_row(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, torch.cat([key[:1, :1].expand(len(key), -1, -1), key[:, 1:]], 1))


def _dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    return x * kept(x, 0.1, 7) / 0.9


def _silenced(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    values = port.split(value).clone()
    values[:, -1] = 0
    return (weights @ values).transpose(1, 2).flatten(2)


def _by_feature(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).permute(0, 2, 3, 1).flatten(2)


def _last_tile(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    size = 4
    tiles = [weights[..., i : i + size] @ port.split(value)[..., i : i + size, :] for i in range(0, value.shape[1], size)]
    return torch.stack(tiles[:-1]).sum(0).transpose(1, 2).flatten(2)


MISTAKES = (
    Mistake(
        "scores over the root of the width", "Scores are divided by √H, not by √d.", "one head's formula, given all features",
        "all", _SCORES, "says that the scale is 1/√H, or another one", {"scores": _root_of_width},
    ),
    Mistake(
        "scores over eight", "Scores are divided by 8 whatever the width of a head.", "kernels made for heads of 64", "all",
        _SCORES, "says that the scale is another one, or 1/8", {"scores": lambda port, layer, q, k: _product(port, q, k) / 8},
    ),
    Mistake(
        "scores scaled twice", "Scores are divided by √d twice.", "queries scaled and then F.scaled_dot_product_attention", "last",
        _SCORES, "says that the scale is applied twice, or is 1/d", {"scores": _scaled_twice},
    ),
    Mistake(
        "scale of bfloat16", "1/√d is rounded to bfloat16.", "a scale registered as a buffer and cast with the model", "all",
        _SCORES, "says that the scale is rounded or slightly another one, or gives no name", {"scores": _short_scale},
    ),
    Mistake(
        "scores capped at fifty", "Scores s are 50 · tanh(s / 50).", "Gemma 2's attn_logit_softcapping, shared attention code",
        "all", _SCORES, "says that the scores are capped by a tanh", {"scores": _capped},
    ),
    Mistake(
        "ALiBi in BERT", "A bias that falls with the distance is added to the scores.",
        "MosaicBERT's attention with BERT's weights", "all", _SCORES, "says that a bias of the distance, or ALiBi, is added",
        {"scores": _biased},
    ),
    Mistake(
        "ALiBi and no scale", "A bias of the distance is added to unscaled products: two changes.",
        "T5's unscaled attention, with MPT's bias", "first", _SCORES,
        "says that the scale is missing, that a bias of the distance is added, or both", {"scores": _biased_unscaled},
    ),
    Mistake(
        "rotary positions besides learned ones", "Queries and keys are turned by their positions, base 10000.",
        "NomicBERT's attention with BERT's weights", "some", _SCORES, "says that rotary embeddings are applied",
        {"scores": _rotary},
    ),
    Mistake(
        "two heads to a key", "Odd heads read the keys of the even head before them.",
        "grouped queries: num_key_value_heads halved", "later", _SCORES,
        "says that heads share keys, or that a key's heads are others", {"scores": _shared_keys},
    ),
    Mistake(
        "cosine attention", "Queries and keys are normalised and their product is multiplied by 10: two changes.",
        "Swin V2's attention", "last", _SCORES, "says that queries and keys are normalised, or another scale beside it",
        {"scores": _cosine},
    ),
    Mistake(
        "keys where queries should be", "Scores are those of the keys with themselves.", "a query's buffer that the key overwrites",
        "first", _SCORES, "says that the query is the key, or is overwritten", {"scores": _keys_with_themselves},
    ),
    Mistake(
        "scores the other way round", "The scores are transposed: q and k are exchanged.", "einsum with its letters exchanged",
        "all", _SCORES, "says that the scores are transposed, or that query and key are exchanged", {"scores": _exchanged},
    ),
    Mistake(
        "first key of another row", "Every row has the first token's key of the batch's first row.",
        "a cached prefix, [CLS], with positions but not rows in its name", "all", _SCORES,
        "says that rows of the batch read another row's key, or gives no name", {"scores": _stale_row},
    ),
    Mistake(
        "attention's dropout at inference", "A tenth of the probabilities is 0 and the rest is divided by 0.9.",
        "F.scaled_dot_product_attention(dropout_p=p) without self.training", "all", _DROPOUT, "says that dropout is active",
        {"attention_dropout": _dropped},
    ),
    Mistake(
        "last head silent", "The last head's context is 0.", "a head mask kept after pruning was tried", "some", _CONTEXT,
        "says that a head is missing or zero", {"context": _silenced},
    ),
    Mistake(
        "features before heads", "A token's context is ordered by feature and then by head.", "einops with (d h) for (h d)",
        "first", _CONTEXT, "says that the heads are interleaved, or merged in another order", {"context": _by_feature},
    ),
    Mistake(
        "last tile of keys unread", "The context lacks the last four keys.", "a loop over (S − 1) // tile tiles", "all", _CONTEXT,
        "says that the last keys are left out", {"context": _last_tile},
    ),
)  # fmt: skip
