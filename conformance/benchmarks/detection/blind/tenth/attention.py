"""Mistakes in the scores, the softmax and the heads of the attention."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, prefix, scores

_SCORES, _PROBS, _CONTEXT = (f"attention.self.{name}" for name in ("scores", "probs", "context"))
_KEY, _VALUE = "attention.self.key", "attention.self.value"
_BASE = 10000.0


def _interleaved(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    """(B, h, S, d) -> (B, S, d, h) -> (B, S, H)."""
    return (weights @ port.split(value)).permute(0, 2, 3, 1).flatten(2)


def _nearer_is_higher(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    """The scores less the distance times `2^(-8 i / h)` in head i."""
    heads, place = port.architecture.num_attention_heads, torch.arange(query.shape[1])
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    distance = (place[:, None] - place[None, :]).abs()
    return scores(port, layer, query, key) - (slopes[:, None, None] * distance).to(query.dtype)


def _rotated(x: Tensor) -> Tensor:
    """Each pair of features, half a head apart, turned by its position times its frequency: (B, h, S, d)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * _BASE ** (-torch.arange(half) / half)
    cosine, sine = (f(angle).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def _rotary(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    turned = _rotated(port.split(query)) @ _rotated(port.split(key)).transpose(-1, -2)
    return turned / math.sqrt(port.architecture.head_size)


def _with_zero_key(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    """The softmax over the keys and one more, of score 0."""
    masked = x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)
    return torch.cat((masked, torch.zeros_like(masked[..., :1])), -1).softmax(-1)[..., :-1]


def _bias_not_scaled(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    """`(x Wᵀ / √d + b) kᵀ` for the query `x Wᵀ + b`."""
    bias = port.weights[f"{prefix(layer)}.attention.self.query.bias"]
    scaled = (query - bias) / math.sqrt(port.architecture.head_size) + bias
    return port.split(scaled) @ port.split(key).transpose(-1, -2)


def _of_first_layer(name: str) -> Operation:
    return lambda port, layer, x: port.found[f"encoder.layer.0.{name}"]


MISTAKES = (
    Mistake(
        "heads interleaved",
        "The joined heads have feature 0 of every head first, then feature 1 of every head, and so on.",
        "permute(0, 2, 3, 1) in place of permute(0, 2, 1, 3); common in exercises",
        "all",
        (_CONTEXT,),
        "says that the heads are joined in the wrong order, or that heads and features are mixed up",
        {"context": _interleaved},
    ),
    Mistake(
        "distance taken off the scores",
        "The scores of a head fall with the distance of query and key, with ALiBi's slopes.",
        "attention code of models that have ALiBi in place of position embeddings; common in exercises",
        "all",
        (_SCORES,),
        "says that a bias that depends on the distance, or ALiBi, is added to the scores",
        {"scores": _nearer_is_higher},
    ),
    Mistake(
        "rotary embedding besides",
        "Query and key are turned by a rotary embedding before their product.",
        "attention code of models that have it in place of position embeddings; common in exercises",
        "some",
        (_SCORES,),
        "says that a rotary embedding, or a rotation by position, is applied to query and key",
        {"scores": _rotary},
    ),
    Mistake(
        "a zero key besides",
        "The softmax is over the keys and one more key of score 0, so that the probabilities add up to less than 1.",
        "add_zero_attn=True of PyTorch's MultiheadAttention, or a softmax with 1 added to the sum; common in exercises",
        "first",
        (_PROBS,),
        "says that the probabilities do not add up to 1, or that the softmax has a term too many",
        {"probs": _with_zero_key},
    ),
    Mistake(
        "query's bias not scaled",
        "The scale of the scores is folded into the query's weight, not into its bias.",
        "weight *= head_size ** -0.5 in a conversion, for a kernel that does not scale; common in exercises",
        "last",
        (_SCORES,),
        "says that the query's bias is not scaled, or is too large by the root of the head's size",
        {"scores": _bias_not_scaled},
    ),
    Mistake(
        "one cache for all layers",
        "All later layers have the first layer's keys and values.",
        "a cache of keys and values without the layer's number; common in exercises",
        "later",
        (_KEY, _VALUE),
        "says that key and value are another layer's, are stale, or do not depend on the layer's input",
        {"key": _of_first_layer(_KEY), "value": _of_first_layer(_VALUE)},
    ),
)
