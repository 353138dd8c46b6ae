"""Mistakes in the scores, the softmax and the heads of the attention."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.eighth.fused import fused
from conformance.benchmarks.detection.blind.port import Mistake, Port, scores

_SCORES, _PROBS, _CONTEXT = (f"attention.self.{name}" for name in ("scores", "probs", "context"))


def _viewed(port: Port, x: Tensor) -> Tensor:
    """(B, S, H) -> (B, h, S, d) without the transpose."""
    rows, length, _ = x.shape
    return x.reshape(rows, port.architecture.num_attention_heads, length, -1)


def _scores_of_views(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _viewed(port, query) @ _viewed(port, key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _context_of_view(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _viewed(port, value)).reshape(value.shape)


def _joined_by_view(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape(value.shape)


def _root_of_width(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.hidden_size)


def _over_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min).softmax(-2)


def _key_times_query(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, key, query)


def _not_projected(port: Port, layer: int, x: Tensor) -> Tensor:
    return x


def _in_half_the_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    rows, heads, length, _ = query.shape

    def halved(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(rows, length, heads // 2, -1).transpose(1, 2)

    return F.scaled_dot_product_attention(halved(query), halved(key), halved(value), attn_mask=mask[:, None, None] != 0)


def _scale_of_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None] != 0, scale=1.0)


MISTAKES = (
    Mistake(
        "heads joined by a view",
        "The heads' outputs, (B, h, S, d), become (B, S, H) without a transpose first.",
        "jsbaan/transformer-from-scratch pull request 6, ajhalthor/Transformer-Neural-Network pull request 4, dfdx issue 158",
        "all",
        (_CONTEXT,),
        "says that the heads are joined without the transpose, or in the wrong order",
        {"context": _joined_by_view},
    ),
    Mistake(
        "heads split by a view",
        "Query, key and value, (B, S, H), become (B, h, S, d) without a transpose, and are joined in the same way.",
        "FuxiCTR issue 30",
        "all",
        (_SCORES, _CONTEXT),
        "says that the heads are split without the transpose, or that positions and heads are mixed up",
        {"scores": _scores_of_views, "context": _context_of_view},
    ),
    Mistake(
        "divided by the root of the hidden size",
        "The scores are divided by the root of the hidden size, not of a head's size.",
        "self.scale = hidden_size ** -0.5; common in exercises",
        "all",
        (_SCORES,),
        "says that the scores' scale is that of the hidden size, or is too small",
        {"scores": _root_of_width},
    ),
    Mistake(
        "softmax along the queries",
        "The softmax is over the queries, not over the keys.",
        "softmax(dim=-2), or dim=1 after the batch and the heads were folded together; common in exercises",
        "all",
        (_PROBS,),
        "says that the softmax is over the queries, or over the wrong axis",
        {"probs": _over_queries},
    ),
    Mistake(
        "key times query",
        "The scores are transposed: their rows are the keys.",
        "torch.matmul(k, q.transpose(-1, -2)); common in exercises",
        "first",
        (_SCORES,),
        "says that query and key are swapped, or that the scores are transposed",
        {"scores": _key_times_query},
    ),
    Mistake(
        "no projection after the heads",
        "The joined heads go to the residual without the output projection.",
        "a multi-head attention with three linears in place of four; common in exercises",
        "last",
        ("attention.output.dense",),
        "says that the output projection of the attention is missing",
        {"attention_dense": _not_projected},
    ),
    Mistake(
        "half the heads, each twice as wide",
        "The attention has half as many heads as the checkpoint, and each is twice as wide.",
        "a number of heads written into the code or taken from another size of the model, as no shape of a weight shows it",
        "all",
        (_CONTEXT,),
        "says that the number of heads, or a head's size, is wrong",
        fused(_in_half_the_heads),
    ),
    Mistake(
        "kernel called with a scale of 1",
        "The fused attention does not divide by the root of the head's size.",
        "a fused attention called with scale=1 for a query that was never scaled, as when T5's attention is shared",
        "last",
        (_CONTEXT,),
        "says that the scores are not scaled, or that the scale is 1",
        fused(_scale_of_one),
    ),
)
