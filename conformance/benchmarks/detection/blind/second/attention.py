"""Scores and their scale, masks, softmax, heads, and what attention keeps from elsewhere."""

import math

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, context, prefix, probs, scores

_SCORES, _PROBS, _CONTEXT = ("attention.self.scores",), ("attention.self.probs",), ("attention.self.context",)
_KEY, _VALUE = ("attention.self.key",), ("attention.self.value",)


def _hidden(x: Tensor, visible: Tensor) -> Tensor:
    return x.masked_fill(visible == 0, torch.finfo(x.dtype).min)


def _scaled_twice(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query / math.sqrt(port.architecture.head_size), key)


def _by_width_first(port: Port, x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], -1, port.architecture.num_attention_heads).permute(0, 3, 1, 2)


def _scores_by_width(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    product = _by_width_first(port, query) @ _by_width_first(port, key).transpose(-1, -2)
    return product / math.sqrt(port.architecture.head_size)


def _context_by_width(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return (weights @ _by_width_first(port, value)).permute(0, 2, 3, 1).flatten(2)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def _rotary(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    product = _rotated(port.split(query)) @ _rotated(port.split(key)).transpose(-1, -2)
    return product / math.sqrt(port.architecture.head_size)


def _distance(length: int) -> Tensor:
    at = torch.arange(length)
    return (at[:, None] - at).abs()


def _linear_biases(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    heads = port.architecture.num_attention_heads
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    return scores(port, layer, query, key) - (slopes[:, None, None] * _distance(query.shape[1])).to(query.dtype)


def _half(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def _half_scores(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return _half(scores(port, layer, _half(query), _half(key)))


def _half_context(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    return _half(context(port, layer, _half(weights), _half(value)))


def _ones_added(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None]).softmax(-1)


def _not_inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None].to(x.dtype) * -10000.0).softmax(-1)


def _tiny_constant(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, 1e-9).softmax(-1)


def _of_queries(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _hidden(x, mask[:, None, :, None]).softmax(-1)


def _tiled(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _hidden(x, mask.repeat(x.shape[1], 1).view(*x.shape[:2], 1, -1)).softmax(-1)


def _first_mask(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, mask[:1])


def _unmasked(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1)


def _over_heads(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _hidden(x, mask[:, None, None]).softmax(1)


def _zero_key(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([_hidden(x, mask[:, None, None]), x.new_zeros(*x.shape[:-1], 1)], -1).softmax(-1)[..., :-1]


def _fast_exp(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    visible = mask[:, None, None]
    hidden = _hidden(x.float(), visible)
    below = (hidden - hidden.amax(-1, keepdim=True)).clamp(min=-80)
    powers = (below * (2**23 / math.log(2)) + (127 * 2**23 - 486411)).to(torch.int32).view(torch.float32) * visible
    return (powers / powers.sum(-1, keepdim=True).clamp(min=1e-30)).to(x.dtype)


def _window(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _hidden(x, mask[:, None, None] * (_distance(x.shape[-1]) <= 3)).softmax(-1)


def _without_head(port: Port, layer: int, x: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], 1)


def _key_as_value(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.linear(f"{prefix(layer)}.attention.self.key", x)


def _first_key(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.found["encoder.layer.0.attention.self.key"]


def _first_value(port: Port, layer: int, x: Tensor) -> Tensor:
    return port.found["encoder.layer.0.attention.self.value"]


MISTAKES = (
    Mistake(
        "scaled twice", "Scores are divided by √d twice.", "a query scaled at loading, before a kernel that scales", "all", _SCORES,
        "the scale is 1/d, or wrong", {"scores": _scaled_twice},
    ),
    Mistake(
        "heads along the wrong side", "Heads are the inner part of the width.", "einops patterns `(d h)` for `(h d)`", "all",
        (*_SCORES, *_CONTEXT), "the width is split into heads in a wrong order",
        {"scores": _scores_by_width, "context": _context_by_width},
    ),
    Mistake(
        "rotary positions besides", "Query and key are rotated by their positions.", "engines made for Llama", "all", _SCORES,
        "rotary positions, or positions that act on scores", {"scores": _rotary},
    ),
    Mistake(
        "linear biases besides", "Scores fall with distance, by a slope for each head.", "code paths shared with JinaBERT and MPT",
        "all", _SCORES, "ALiBi, or a bias by distance that scores should not have", {"scores": _linear_biases},
    ),
    Mistake(
        "attention in half", "Both products of attention take and give bfloat16 in a float32 network.",
        "autocast; flash kernels that have no float32", "all", (*_SCORES, *_CONTEXT), "operands or results are rounded to bfloat16",
        {"scores": _half_scores, "context": _half_context},
    ),
    Mistake(
        "mask added as it is", "Ones and zeros are added to the scores.", "masks passed on without the step that makes them large",
        "all", _PROBS, "padding is not masked: the mask's constant is too small", {"probs": _ones_added},
    ),
    Mistake(
        "mask not inverted", "Tokens are masked, padding is not.", "mask * -10000 without 1 - mask", "all", _PROBS,
        "the mask is inverted", {"probs": _not_inverted},
    ),
    Mistake(
        "1e-9 for -1e9", "Masked scores become zero.", "typing", "all", _PROBS,
        "masked scores are zero, or padding is not masked", {"probs": _tiny_constant},
    ),
    Mistake(
        "mask of queries", "The mask stands along the queries.", "broadcasting (B, S, 1) for (B, 1, S)", "all", _PROBS,
        "the mask is on the wrong axis, or padding is not masked", {"probs": _of_queries},
    ),
    Mistake(
        "mask tiled over heads", "Each head has the mask of another sequence.",
        "repeat for repeat_interleave with (B·h, S, S) masks", "all", _PROBS,
        "masks belong to other sequences", {"probs": _tiled},
    ),
    Mistake(
        "mask of the first sequence", "All sequences have the mask of the first.", "graphs traced with one sequence", "all", _PROBS,
        "masks belong to another sequence, or padding is not masked", {"probs": _first_mask},
    ),
    Mistake(
        "masked in the first layer only", "Later layers have no mask.", "an optional argument that is not passed on", "later",
        _PROBS, "padding is not masked", {"probs": _unmasked},
    ),
    Mistake(
        "softmax over heads", "Softmax runs over the heads.", "softmax without `dim`, which takes axis 1", "all", _PROBS,
        "softmax is over a wrong axis (heads)", {"probs": _over_heads},
    ),
    Mistake(
        "a zero key more", "A key whose score is zero takes part.", "add_zero_attn; softmax with one more in the sum", "all",
        _PROBS, "the softmax's sum has one more", {"probs": _zero_key},
    ),
    Mistake(
        "exp by bits", "Softmax's exp is Schraudolph's.", "kernels for microcontrollers", "all", _PROBS, "exp is approximate",
        {"probs": _fast_exp},
    ),
    Mistake(
        "window of three", "Tokens attend to those at most three away.", "code paths shared with ModernBERT and Longformer", "some",
        _PROBS, "tokens far away are masked: a window", {"probs": _window},
    ),
    Mistake(
        "one head masked", "The first head's weights are zero.", "a head mask left on after a study of heads", "first",
        ("attention.self.dropout",), "a head is zero", {"attention_dropout": _without_head},
    ),
    Mistake(
        "value by key's weights", "The value is made with the key's parameters.", "copied lines", "some", _VALUE,
        "value has key's parameters", {"value": _key_as_value},
    ),
    Mistake(
        "keys and values of the first layer", "Later layers reuse the first layer's keys and values.",
        "a cache whose entries have no layer", "later", (*_KEY, *_VALUE), "these are another layer's keys and values",
        {"key": _first_key, "value": _first_value},
    ),
)  # fmt: skip
