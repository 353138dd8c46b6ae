"""Masks, softmax, heads, and what attention keeps or drops."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, context, prefix, probs, scores

_SCORES, _PROBS, _CONTEXT = ("attention.self.scores",), ("attention.self.probs",), ("attention.self.context",)


def _hidden(x: Tensor, visible: Tensor) -> Tensor:
    return x.masked_fill(visible == 0, torch.finfo(x.dtype).min)


def _last_token_masked(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return probs(port, layer, x, mask.scatter(1, last[:, None], 0))


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    earlier = torch.ones(x.shape[-2:], dtype=torch.long).tril()
    return _hidden(x, mask[:, None, None] * earlier).softmax(-1)


def _by_width(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(port.architecture.hidden_size)


def _bias_not_scaled(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    bias, root = port.weights[f"{prefix(layer)}.attention.self.query.bias"], math.sqrt(port.architecture.head_size)
    return port.split((query - bias) / root + bias) @ port.split(key).transpose(-1, -2)


def _heads_by_view(port: Port, x: Tensor) -> Tensor:
    return x.reshape(len(x), port.architecture.num_attention_heads, x.shape[1], -1)


def _viewed(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    q, k = _heads_by_view(port, query), _heads_by_view(port, key)
    return q @ k.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _merged_by_view(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape(value.shape)


def _interleaved(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    heads = port.architecture.num_attention_heads
    q, k = (x.view(*x.shape[:-1], -1, heads).permute(0, 3, 1, 2) for x in (query, key))
    return q @ k.transpose(-1, -2)


def _one_value(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)[:, :1]).transpose(1, 2).flatten(2)


def _pruned(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return context(port, layer, weights * (torch.arange(weights.shape[1]) != 1)[:, None, None], value)


def _dropped(port: Port, layer: int, x: Tensor) -> Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) >= 0.1
    return x * kept.to(x.dtype) / 0.9


def _keys_before(port: Port, layer: int, hidden: Tensor) -> Tensor:
    return port.found[f"encoder.layer.{layer - 1}.attention.self.key"]


def _to_tf32(x: Tensor) -> Tensor:
    """The significand cut to ten bits behind the leading one, rounded to nearest; formats with fewer bits are unchanged."""
    if x.dtype != torch.float32:
        return x
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _in_tf32(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, _to_tf32(query), _to_tf32(key))


MISTAKES = (
    Mistake(
        "mask of minus ten", "what is masked has 10 subtracted, not 10,000", "a constant chosen for float16", "all", _PROBS,
        "the mask adds -10", {"probs": lambda port, _, x, mask: (x + (1 - mask[:, None, None].to(x.dtype)) * -10).softmax(-1)},
    ),
    Mistake(
        "mask of ones added", "the mask of ones and zeros is added to the scores as it is",
        "scaled_dot_product_attention with a float mask", "all", _PROBS, "the mask itself is added",
        {"probs": lambda port, _, x, mask: (x + mask[:, None, None].to(x.dtype)).softmax(-1)},
    ),
    Mistake(
        "last token masked", "the mask is short by one: the last token of each row is not attended to",
        "a mask made of lengths, with < length - 1", "first", _PROBS, "the last token is masked", {"probs": _last_token_masked},
    ),
    Mistake(
        "mask over queries", "the mask is broadcast along the keys, and hides queries", "mask[:, None, :, None]", "all", _PROBS,
        "the mask is applied to queries", {"probs": lambda port, _, x, mask: _hidden(x, mask[:, None, :, None]).softmax(-1)},
    ),
    Mistake(
        "mask after softmax", "probabilities are multiplied by the mask and do not add up to 1", "a kernel that masks last", "last",
        _PROBS, "the mask is applied after softmax",
        {"probs": lambda port, _, x, mask: x.softmax(-1) * mask[:, None, None].to(x.dtype)},
    ),
    Mistake(
        "mask of the last row", "every row has the last row's mask", "a loop over rows that overwrites one mask", "all", _PROBS,
        "the mask is that of another row", {"probs": lambda port, _, x, mask: _hidden(x, mask[-1:, None, None]).softmax(-1)},
    ),
    Mistake(
        "causal", "a token attends to itself and to earlier ones alone", "an engine for decoders", "all", _PROBS,
        "attention is causal", {"probs": _causal},
    ),
    Mistake(
        "softmax over queries", "softmax is over the queries", "softmax(dim=-2)", "first", _PROBS, "softmax is over queries",
        {"probs": lambda port, _, x, mask: _hidden(x, mask[:, None, None]).softmax(-2)},
    ),
    Mistake(
        "scale by the width", "scores are divided by √H, not √d", "attention with one head, extended", "all", _SCORES,
        "scores are divided by √H", {"scores": _by_width},
    ),
    Mistake(
        "scale folded into the weight alone", "1/√d is folded into the query's weight, and its bias is left as it is",
        "an exporter that folds constants", "some", _SCORES, "the query's bias is not scaled", {"scores": _bias_not_scaled},
    ),
    Mistake(
        "heads by view", "queries and keys are viewed as (B, h, S, d) without a transposition", "x.view(B, h, S, d)", "all",
        _SCORES, "heads are split by a view", {"scores": _viewed},
    ),
    Mistake(
        "merged by view", "the context is viewed as (B, S, H) without a transposition", "context.view(B, S, H)", "last", _CONTEXT,
        "heads are merged by a view", {"context": _merged_by_view},
    ),
    Mistake(
        "heads interleaved, no scale", "two at one step: a head is every h-th feature, and the scores are not scaled",
        "a kernel with another layout", "first", _SCORES, "heads interleaved; scale missing", {"scores": _interleaved},
    ),
    Mistake(
        "one head of values", "every head has the first head's values", "multi-query attention", "last", _CONTEXT,
        "every head uses the values of head 0", {"context": _one_value},
    ),
    Mistake(
        "a head pruned", "the second head is masked out", "a head mask that is left in", "last", _CONTEXT, "head 1 is zero",
        {"context": _pruned},
    ),
    Mistake(
        "dropout on probabilities left on", "dropout of 0.1 acts on the probabilities in evaluation",
        "scaled_dot_product_attention(dropout_p=0.1)", "some", ("attention.self.dropout",), "dropout is on",
        {"attention_dropout": _dropped},
    ),
    Mistake(
        "keys of the layer before", "attention uses the keys of the layer before", "a cache whose index of layers is off by one",
        "later", ("attention.self.key",), "keys of another layer", {"key": _keys_before},
    ),
    Mistake(
        "scores in TF32", "queries and keys are rounded to TF32 before their product", "allow_tf32", "all", _SCORES,
        "reduced precision, 11 bits", {"scores": _in_tf32},
    ),
)  # fmt: skip
