"""From query, key and value, a head each, and the keys that are attended to, to the heads' results."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.steps import hidden_keys


def native_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """torch's own."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keys)


def native_attention_additive(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """The same, with numbers to add for a mask."""
    added = torch.zeros_like(keys, dtype=query.dtype).masked_fill(~keys, torch.finfo(query.dtype).min)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added.expand(-1, -1, query.shape[-2], -1))


def divided_afterwards(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Exponentials times values in the format of the values, divided by their sum in float32: as in a fused kernel."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = (query.to(dtype) @ key.to(dtype).transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~keys, -math.inf)
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    mixed = weights.to(value.dtype).to(dtype) @ value.to(dtype)
    return (mixed / weights.sum(-1, keepdim=True)).to(value.dtype)


def online_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Blocks of five keys, with a running maximum and a running sum, in at least float32."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(dtype) for x in (query, key, value))
    mixed, total = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    largest = torch.full_like(total, torch.finfo(dtype).min)
    for block in torch.split(torch.arange(k.shape[-2], device=k.device), 5):
        logits = hidden_keys(q @ k[:, :, block].transpose(-1, -2) / math.sqrt(q.shape[-1]), keys[..., block])
        risen = torch.maximum(largest, logits.amax(-1, keepdim=True))
        weights = torch.exp(logits - risen) * keys[..., block].to(dtype)
        kept = torch.exp(largest - risen)
        mixed, total = mixed * kept + weights @ v[:, :, block], total * kept + weights.sum(-1, keepdim=True)
        largest = risen
    return (mixed / total).to(value.dtype)


def online_attention_backwards(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """The same from the last key to the first."""
    return online_attention(query, key.flip(-2), value.flip(-2), keys.flip(-1))


def two_pass_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """The normaliser of a row from one pass over its logits, probabilities times values in the next, in at least float32."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = (query.to(dtype) @ key.to(dtype).transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~keys, -math.inf)
    normaliser = torch.logsumexp(logits, -1, keepdim=True)
    return (torch.exp(logits - normaliser) @ value.to(dtype)).to(value.dtype)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Two halves of the keys as on two devices, each with its logsumexp, then merged; in at least float32."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    halves = []
    for part in torch.arange(key.shape[-2]).tensor_split(2):
        logits = hidden_keys(
            query.to(dtype) @ key[:, :, part].to(dtype).transpose(-1, -2) / math.sqrt(query.shape[-1]), keys[..., part]
        )
        halves.append((torch.softmax(logits, -1) @ value[:, :, part].to(dtype), torch.logsumexp(logits, -1, keepdim=True)))
    (first, a), (second, b) = halves
    largest = torch.maximum(a, b)
    of_first, of_second = torch.exp(a - largest), torch.exp(b - largest)
    return ((first * of_first + second * of_second) / (of_first + of_second)).to(value.dtype)


def padded_heads_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """torch's own on heads padded with zeros to a multiple of 32 features, the scale given: as kernels ask for."""
    size = query.shape[-1]
    q, k, v = (F.pad(x, (0, -size % 32)) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keys, scale=size**-0.5)[..., :size]


def float64_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """torch's own in float64, rounded once."""
    return F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=keys).to(value.dtype)


def query_at_a_time(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """torch's own, a query at a time, as with a cache of keys."""
    rows = [F.scaled_dot_product_attention(query[:, :, i : i + 1], key, value, attn_mask=keys) for i in range(query.shape[-2])]
    return torch.cat(rows, -2)


def masked_scores_shown(model: Bert) -> None:
    """Scores are handed on, and shown, with masked keys at −∞."""
    for index in range(model.architecture.num_hidden_layers):
        own = model.layer(index).attention.self
        right = own.scores.forward

        def scores(query: Tensor, key: Tensor, mask: Tensor, right: Callable[..., Tensor] = right) -> Tensor:
            return right(query, key).masked_fill(mask[:, None, None, :] == 0, -math.inf)

        def forward(hidden: Tensor, mask: Tensor, own: SelfAttention = own) -> Tensor:
            probs = own.dropout(own.probs(own.scores(own.query(hidden), own.key(hidden), mask), mask))
            context: Tensor = own.context(probs, own.value(hidden))
            return context

        override(own.scores, "forward", scores)
        override(own, "forward", forward)
