"""Mistakes in the attention."""

import math

from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port

_SCORES, _PROBS, _CONTEXT = (f"attention.self.{name}" for name in ("scores", "probs", "context"))
_DENSE = "attention.output.dense"


def _unscaled(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).mT


def _by_hidden_size(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _unscaled(port, layer, query, key) / math.sqrt(port.architecture.hidden_size)


def _keys_by_queries(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return OPERATIONS["scores"](port, layer, key, query)


def _over_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, -1e4).softmax(-2)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, -1e4).softmax(1)


def _viewed(port: Port, x: Tensor) -> Tensor:
    """(B, S, H) -> (B, h, S, d) of the same memory."""
    return x.reshape(x.shape[0], port.architecture.num_attention_heads, x.shape[1], -1)


def _viewed_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _viewed(port, query) @ _viewed(port, key).mT / math.sqrt(port.architecture.head_size)


def _viewed_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _viewed(port, value)).reshape(value.shape)


def _strided(port: Port, x: Tensor) -> Tensor:
    """(B, S, H) -> (B, h, S, d), a head having every h-th feature."""
    return x.view(*x.shape[:-1], -1, port.architecture.num_attention_heads).permute(0, 3, 1, 2)


def _strided_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _strided(port, query) @ _strided(port, key).mT / math.sqrt(port.architecture.head_size)


def _strided_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _strided(port, value)).permute(0, 2, 3, 1).flatten(2)


def _not_put_back(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape(value.shape)


def _no_projection(port: Port, layer: int, x: Tensor) -> Tensor:
    return x


MISTAKES = (
    Mistake(
        "scores not scaled",
        "The scores are not divided by the root of the head size.",
        "a kernel or a port that leaves the scale to the caller; common in exercises",
        "all",
        (_SCORES,),
        "says that the scores are not scaled",
        {"scores": _unscaled},
    ),
    Mistake(
        "root of the hidden size",
        "The scores are divided by the root of the hidden size, not of a head's.",
        "math.sqrt(embed_dim) after the split into heads; common in exercises",
        "all",
        (_SCORES,),
        "says that the scale of the scores is wrong, or that of the hidden size",
        {"scores": _by_hidden_size},
    ),
    Mistake(
        "keys by queries",
        "The scores are k qᵀ: rows are keys.",
        "an einsum with its letters exchanged; common in exercises",
        "last",
        (_SCORES,),
        "says that the scores are transposed, or that query and key are swapped",
        {"scores": _keys_by_queries},
    ),
    Mistake(
        "softmax down the columns",
        "The softmax is over the queries.",
        "softmax(dim=-2), or dim=2 counted from one; common in exercises",
        "all",
        (_PROBS,),
        "says that the softmax is over the queries, or the wrong axis",
        {"probs": _over_queries},
    ),
    Mistake(
        "softmax over the heads",
        "The softmax is over the heads.",
        "nn.Softmax() without dim, which takes axis 1 of a tensor with four",
        "all",
        (_PROBS,),
        "says that the softmax is over the heads, or the wrong axis",
        {"probs": _over_heads},
    ),
    Mistake(
        "heads by a view",
        "The projections are viewed as (batch, heads, sequence, head size), and the context viewed back, with no transposition.",
        "x.view(B, h, S, d) for x.view(B, S, h, d).transpose(1, 2); common in exercises",
        "all",
        (_SCORES, _CONTEXT),
        "says that the heads are split wrongly, or without the transposition",
        {"scores": _viewed_scores, "context": _viewed_context},
    ),
    Mistake(
        "every h-th feature a head",
        "A head has every h-th feature, not those side by side.",
        "einops' '(d h)' for '(h d)', or view(B, S, d, h)",
        "some",
        (_SCORES, _CONTEXT),
        "says that the heads are interleaved, or split wrongly",
        {"scores": _strided_scores, "context": _strided_context},
    ),
    Mistake(
        "heads not transposed back",
        "The context is reshaped from (batch, heads, sequence, head size) to (batch, sequence, hidden size) as it lies.",
        "a reshape without transpose(1, 2) before it; common in exercises",
        "all",
        (_CONTEXT,),
        "says that the heads are merged wrongly, or without the transposition",
        {"context": _not_put_back},
    ),
    Mistake(
        "no output projection",
        "The context goes into the residual without the projection.",
        "attention that ends with the concatenated heads; common in exercises",
        "first",
        (_DENSE,),
        "says that the attention's output projection is missing",
        {"attention_dense": _no_projection},
    ),
)
