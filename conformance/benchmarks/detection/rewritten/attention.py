"""Attention from query, key and value, (B, h, S, d) each, and the mask of attended keys to the heads' results, (B, h, S, d)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, SelfAttention
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.steps import hidden_keys


def native_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Use torch's scaled dot-product attention with a Boolean mask."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keys)


def native_attention_additive(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Use torch's scaled dot-product attention with an additive mask."""
    added = torch.zeros_like(keys, dtype=query.dtype).masked_fill(~keys, torch.finfo(query.dtype).min)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added.expand(-1, -1, query.shape[-2], -1))


def divided_afterwards(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Multiply exponentials by values in the format of the values, then divide by their sum in float32, as a fused kernel does."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = (query.to(dtype) @ key.to(dtype).transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~keys, -math.inf)
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    mixed = weights.to(value.dtype).to(dtype) @ value.to(dtype)
    return (mixed / weights.sum(-1, keepdim=True)).to(value.dtype)


def online_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Process blocks of five keys with a running maximum and a running sum, in at least float32."""
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
    """Process blocks of five keys as `online_attention` does, from the last key to the first."""
    return online_attention(query, key.flip(-2), value.flip(-2), keys.flip(-1))


def two_pass_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Compute the normalizer of a row in one pass over its logits, and the product with the values in the next.

    Both passes are computed in at least float32.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    logits = (query.to(dtype) @ key.to(dtype).transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~keys, -math.inf)
    normaliser = torch.logsumexp(logits, -1, keepdim=True)
    return (torch.exp(logits - normaliser) @ value.to(dtype)).to(value.dtype)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Process two halves of the keys as on two devices, each with its logsumexp, and merge them, in at least float32."""
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
    """Use torch's attention on heads padded with zeros to a multiple of 32 features, as kernels require, with the scale given."""
    size = query.shape[-1]
    q, k, v = (F.pad(x, (0, -size % 32)) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keys, scale=size**-0.5)[..., :size]


def float64_attention(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Use torch's attention in float64, rounded once."""
    return F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=keys).to(value.dtype)


def query_at_a_time(query: Tensor, key: Tensor, value: Tensor, keys: Tensor) -> Tensor:
    """Use torch's attention for one query at a time, as with a cache of keys."""
    rows = [F.scaled_dot_product_attention(query[:, :, i : i + 1], key, value, attn_mask=keys) for i in range(query.shape[-2])]
    return torch.cat(rows, -2)


def masked_scores_shown(model: Bert) -> None:
    """Expose scores, and pass them on, with masked keys at −∞."""
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
