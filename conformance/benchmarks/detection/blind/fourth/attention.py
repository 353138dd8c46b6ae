"""Mistakes in attention: the layout of heads, the scores, the mask and the softmax."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, context, scores
from conformance.benchmarks.detection.blind.third.tools import kept

_SCORES = ("attention.self.scores",)
_PROBS = ("attention.self.probs",)
_CONTEXT = ("attention.self.context",)


def _softmax(x: Tensor, attended: Tensor) -> Tensor:
    return x.masked_fill(~attended, torch.finfo(x.dtype).min).softmax(-1)


def _keys(mask: Tensor) -> Tensor:
    return mask[:, None, None] != 0


# Scores and layout.


def _without_scale(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2)


def _scaled_twice(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key) / math.sqrt(port.architecture.head_size)


def _interleaved(port: Port, x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], -1, port.architecture.num_attention_heads).permute(0, 3, 1, 2)


def _interleaved_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    product = _interleaved(port, query) @ _interleaved(port, key).transpose(-1, -2)
    return product / math.sqrt(port.architecture.head_size)


def _interleaved_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _interleaved(port, value)).permute(0, 2, 3, 1).flatten(2)


def _viewed(port: Port, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], port.architecture.num_attention_heads, x.shape[1], -1)


def _viewed_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _viewed(port, query) @ _viewed(port, key).transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _viewed_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _viewed(port, value)).transpose(1, 2).flatten(2)


def _merged_by_view(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ port.split(value)).reshape(value.shape)


def _reshaped_keys(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    keys = port.split(key)
    return port.split(query) @ keys.reshape(*keys.shape[:2], keys.shape[3], keys.shape[2]) / math.sqrt(port.architecture.head_size)


def _linear_bias(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    right = scores(port, layer, query, key)
    at = torch.arange(right.shape[-1], device=right.device)
    slopes = 2.0 ** (-8 * torch.arange(1, right.shape[1] + 1, device=right.device) / right.shape[1])
    return right - (slopes[:, None, None] * (at[:, None] - at).abs()).to(right.dtype)


def _without_first_head(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    merged = context(port, layer, weights, value)
    merged[..., : port.architecture.head_size] = 0
    return merged


# Mask and softmax.


def _blockwise(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    attended = _keys(mask)
    hidden = x.masked_fill(~attended, torch.finfo(x.dtype).min)
    pieces, largest = [], torch.full_like(x[..., :1], torch.finfo(x.dtype).min)
    for block in torch.split(hidden, 4, -1):
        largest = torch.maximum(largest, block.amax(-1, keepdim=True))
        pieces.append((block - largest).exp())
    powers = torch.cat(pieces, -1) * attended
    return powers / powers.sum(-1, keepdim=True)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~_keys(mask), torch.finfo(x.dtype).min).softmax(1)


def _short_of(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    at = torch.arange(x.shape[-1], device=x.device)
    return _softmax(x, (at < mask.sum(-1, keepdim=True))[:, None, None])


def _causal(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _softmax(x, _keys(mask) & torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril())


def _own_segment(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    kind = port.found["embeddings.token_type_embeddings"]
    return _softmax(x, _keys(mask) & (kind[:, :, None] == kind[:, None]).all(-1)[:, None])


def _masks_of_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    repeated = mask.repeat(x.shape[1], 1).view(x.shape[0], x.shape[1], 1, -1)
    return _softmax(x, repeated != 0)


def _not_renormalised(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * _keys(mask)


MISTAKES = (
    Mistake(
        "scores not scaled",
        "The scores are not divided by √d.",
        "a hand-written kernel, whose caller was to scale the query",
        "all",
        _SCORES,
        "says that the scale of the scores is missing",
        {"scores": _without_scale},
    ),
    Mistake(
        "scores scaled twice",
        "The scores are divided by √d twice.",
        "a query scaled before F.scaled_dot_product_attention",
        "all",
        _SCORES,
        "says that scores are scaled twice, or divided by d",
        {"scores": _scaled_twice},
    ),
    Mistake(
        "heads interleaved",
        "Heads are read as every h-th number rather than as blocks of d numbers.",
        "einops with '(d h)' in place of '(h d)'",
        "all",
        (*_SCORES, *_CONTEXT),
        "says that heads are interleaved, or split in the wrong order of axes",
        {"scores": _interleaved_scores, "context": _interleaved_context},
    ),
    Mistake(
        "heads split by view alone",
        "Query, key and value are viewed as (B, h, S, d) without a transpose.",
        "ports to MLX and JAX that reshape directly",
        "all",
        (*_SCORES, *_CONTEXT),
        "says that heads are split without a transpose, so that tokens and heads mix",
        {"scores": _viewed_scores, "context": _viewed_context},
    ),
    Mistake(
        "heads merged by view alone",
        "(B, h, S, d) is reshaped to (B, S, H) without a transpose.",
        "F.scaled_dot_product_attention followed by reshape",
        "all",
        _CONTEXT,
        "says that heads are merged without a transpose",
        {"context": _merged_by_view},
    ),
    Mistake(
        "keys reshaped, not transposed",
        "The keys of a head are reshaped to (d, S) rather than transposed.",
        "a matrix product in WGSL or C++ that takes row-major for column-major",
        "some",
        _SCORES,
        "says that keys are reshaped rather than transposed",
        {"scores": _reshaped_keys},
    ),
    Mistake(
        "a bias by distance",
        "ALiBi's linear bias is added to the scores.",
        "a runtime that also serves JinaBERT and MosaicBERT",
        "all",
        _SCORES,
        "says that a bias by distance, or ALiBi, is added to the scores",
        {"scores": _linear_bias},
    ),
    Mistake(
        "first head's mask left",
        "The context of the first head is zero.",
        "an experiment in pruning, its head_mask saved with it",
        "first",
        _CONTEXT,
        "says that a head is masked, pruned, missing or zero",
        {"context": _without_first_head},
    ),
    Mistake(
        "attention's dropout on",
        "A tenth of the attention probabilities is dropped, and the rest divided by 0.9.",
        "F.scaled_dot_product_attention(dropout_p=0.1) without a look at self.training",
        "all",
        ("attention.self.dropout",),
        "says that dropout is active at inference",
        {"attention_dropout": lambda port, layer, x: x * kept(x, 0.1, 11) / 0.9},
    ),
    Mistake(
        "mask added as ones and zeros",
        "The mask of ones and zeros is added to the scores.",
        "a mask of floats given to F.scaled_dot_product_attention",
        "all",
        _PROBS,
        "says that the 0/1 mask is added to the scores, or that the mask is too weak",
        {"probs": lambda port, layer, x, mask: (x + mask[:, None, None]).softmax(-1)},
    ),
    Mistake(
        "mask inverted",
        "Padding alone is attended to.",
        "key_padding_mask of torch.nn.MultiheadAttention, where True is padding",
        "all",
        _PROBS,
        "says that the mask is inverted",
        {"probs": lambda port, layer, x, mask: _softmax(x, ~_keys(mask))},
    ),
    Mistake(
        "mask as factor of the scores",
        "The scores of padding are set to 0, not to -∞.",
        "mask * scores in a NumPy port",
        "all",
        _PROBS,
        "says that the scores of padding are 0, or that the mask is multiplied",
        {"probs": lambda port, layer, x, mask: (x * mask[:, None, None]).softmax(-1)},
    ),
    Mistake(
        "mask after the softmax",
        "The mask is applied to the probabilities, which then do not sum to 1.",
        "a fused softmax that has no mask",
        "all",
        _PROBS,
        "says that the mask comes after the softmax, or that probabilities do not sum to 1",
        {"probs": _not_renormalised},
    ),
    Mistake(
        "mask of queries",
        "The mask is laid along the queries, not along the keys.",
        "mask[:, None, :, None]",
        "all",
        _PROBS,
        "says that the mask is applied to the queries, not to the keys",
        {"probs": lambda port, layer, x, mask: _softmax(x, (mask != 0)[:, None, :, None])},
    ),
    Mistake(
        "no mask",
        "Padding is attended to.",
        "a command-line program for one sentence, given batches later",
        "all",
        _PROBS,
        "says that the mask is ignored, or padding attended to",
        {"probs": lambda port, layer, x, mask: x.softmax(-1)},
    ),
    Mistake(
        "masks of heads tiled",
        "The mask is repeated as a whole for each head and then read as (B, h).",
        "mask.repeat(h, 1, 1) for torch.nn.MultiheadAttention, in place of repeat_interleave",
        "all",
        _PROBS,
        "says that heads or rows have the mask of another row",
        {"probs": _masks_of_heads},
    ),
    Mistake(
        "mask as a length",
        "The first n keys of a row are attended to, n being the sum of its mask.",
        "seqlens of FlashAttention and FasterTransformer",
        "all",
        _PROBS,
        "says that the mask is taken as a length, or that padding is assumed to be on the right",
        {"probs": _short_of},
    ),
    Mistake(
        "causal mask",
        "A token attends to itself and to earlier tokens.",
        "is_causal=True, left from a decoder",
        "all",
        _PROBS,
        "says that attention is causal",
        {"probs": _causal},
    ),
    Mistake(
        "attention within the segment",
        "A token attends only to tokens of its own type.",
        "segment ids given to a JAX kernel that takes them for packed documents",
        "all",
        _PROBS,
        "says that attention stays within a segment or token type",
        {"probs": _own_segment},
    ),
    Mistake(
        "softmax over heads",
        "The softmax is over the heads.",
        "F.softmax without dim, which takes axis 1 of four",
        "all",
        _PROBS,
        "says that the softmax is over the heads",
        {"probs": _over_heads},
    ),
    Mistake(
        "softmax by blocks without rescaling",
        "Sums over earlier blocks of keys are not rescaled when the running maximum grows.",
        "an online softmax in Triton",
        "all",
        _PROBS,
        "says that the softmax is by blocks or online without rescaling, or that earlier keys have too much weight",
        {"probs": _blockwise},
    ),
)
"""All of this theme."""
