"""Mistakes in attention: the scale, the layout of values, the softmax and the cache. The masks have a module of their own."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Operation, Port, context, prefix, scores

_SCORES = ("attention.self.scores",)
_PROBS = ("attention.self.probs",)
_CONTEXT = ("attention.self.context",)


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)


# Scores.


def _query_alone(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query * port.architecture.head_size**-0.25) @ port.split(key).transpose(-1, -2)


def _padded_head(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return port.split(query) @ port.split(key).transpose(-1, -2) / math.sqrt(2 * port.architecture.head_size)


def _log_length(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    return scores(port, layer, query, key) * (math.log(query.shape[1]) / math.log(512))


def _keys_of_bytes(port: Port, layer: int, query: Tensor, key: Tensor) -> Tensor:
    heads = port.split(key).float()
    scale = heads.abs().amax(-1, keepdim=True) / 127
    cached = ((heads / scale).round() * scale).to(key.dtype)
    return port.split(query) @ cached.transpose(-1, -2) / math.sqrt(port.architecture.head_size)


def _rotary_order(part: str) -> Operation:
    def projected(port: Port, layer: int, hidden: Tensor) -> Tensor:
        name = f"{prefix(layer)}.attention.self.{part}"
        weight = port.weights[f"{name}.weight"]
        halves = weight.view(port.architecture.num_attention_heads, 2, -1, weight.shape[1])
        return F.linear(hidden, halves.transpose(1, 2).reshape(weight.shape), port.weights[f"{name}.bias"])

    return projected


# Softmax.


def _log2_and_exp(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (_masked(x, mask) * math.log2(math.e)).softmax(-1)


def _with_zeros(x: Tensor, mask: Tensor, count: int) -> Tensor:
    return F.pad(_masked(x, mask), (0, count)).softmax(-1)[..., : x.shape[-1]]


def _zero_key(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _with_zeros(x, mask, 1)


def _idle_lanes(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return _with_zeros(x, mask, -x.shape[-1] % 32)


def _integer_exp(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    below = _masked(x, mask).float()
    below = (below - below.amax(-1, keepdim=True)).clamp(min=-30 * math.log(2))
    halvings = (-below / math.log(2)).floor()
    rest = below + halvings * math.log(2)
    exponentials = (0.3585 * (rest + 1.353) ** 2 + 0.344) * 2**-halvings
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(x.dtype)


# Context.


def _values_transposed(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    rows, length, _ = value.shape
    stored = value.reshape(rows, port.architecture.num_attention_heads, -1, length)
    return (weights @ stored.transpose(-1, -2)).transpose(1, 2).flatten(2)


def _written_to_the_left(port: Port, layer: int, weights: Tensor, value: Tensor) -> Tensor:
    right = context(port, layer, weights, value)
    attended = weights.amax((1, 2)) > 0
    left = torch.zeros_like(right)
    for row, mask in enumerate(attended):
        left[row, : int(mask.sum())] = right[row, mask]
    return left


MISTAKES = (
    Mistake(
        "fourth root on the query alone",
        "The query is divided by the fourth root of d, the key is not.",
        "Whisper's attention, which scales both sides, in a port that keeps one of the lines",
        "all",
        _SCORES,
        "says that scores have another scale, or are too large by the fourth root of d",
        {"scores": _query_alone},
    ),
    Mistake(
        "scale of the padded head",
        "Scores are divided by √(2d), for heads padded with zeros to 2d.",
        "flash attention for heads of 128, called with padded heads of 64 and its default scale",
        "all",
        _SCORES,
        "says that scores have another scale",
        {"scores": _padded_head},
    ),
    Mistake(
        "scale by the logarithm of the length",
        "Scores are multiplied by log S / log 512.",
        "bert4keras with attention_scale for longer sequences left on",
        "some",
        _SCORES,
        "says that scores have another scale, or one that depends on the length",
        {"scores": _log_length},
    ),
    Mistake(
        "keys in a cache of bytes",
        "Keys are rounded to signed bytes, with a scale for each token and head.",
        "an int8 key-value cache",
        "all",
        _SCORES,
        "says that the keys, or an operand of the scores, are rounded to eight bits",
        {"scores": _keys_of_bytes},
    ),
    Mistake(
        "rotary order without rotary",
        "The rows of query and key weights of each head are permuted from interleaved to halves, the biases are not.",
        "convert_hf_to_gguf's permute for Llama, applied to an encoder's attn_q and attn_k",
        "all",
        ("attention.self.query", "attention.self.key"),
        "says that rows of the weights are permuted, or that the weights are not the checkpoint's",
        {part: _rotary_order(part) for part in ("query", "key")},
    ),
    Mistake(
        "log2(e) and exp",
        "Scores are multiplied by log2(e) for exp2, and exp is called.",
        "a Triton kernel whose scale has the factor folded in, with the exponential exchanged",
        "all",
        _PROBS,
        "says that the softmax has another base or temperature",
        {"probs": _log2_and_exp},
    ),
    Mistake(
        "zero key appended",
        "The softmax has one more key, whose score is zero.",
        "nn.MultiheadAttention with add_zero_attn, or a sink without its value",
        "all",
        _PROBS,
        "says that there is another term in the softmax's sum, or that probabilities do not sum to one",
        {"probs": _zero_key},
    ),
    Mistake(
        "idle lanes in the softmax",
        "The sum of the softmax counts idle lanes, up to a multiple of 32 keys, as scores of zero.",
        "a warp reduction that initialises lanes beyond the row with 0 instead of -inf",
        "last",
        _PROBS,
        "says that there are other terms in the softmax's sum, or that probabilities do not sum to one",
        {"probs": _idle_lanes},
    ),
    Mistake(
        "exp of I-BERT",
        "The exponential is I-BERT's: a quadratic on (-ln 2, 0], shifted.",
        "an integer-only port, for a DSP without an exponential",
        "first",
        _PROBS,
        "says that the exponential is approximated, or the softmax inexact",
        {"probs": _integer_exp},
    ),
    Mistake(
        "values read as stored transposed",
        "The memory of the values, token by token, is read as if it were stored channel by channel.",
        "a cache that is kept transposed for one kernel and not for another, as v_trans in llama.cpp",
        "all",
        _CONTEXT,
        "says that the layout of the values is another one",
        {"context": _values_transposed},
    ),
    Mistake(
        "tokens written back to the left",
        "The contexts of attended tokens are written to the beginning of the row, whatever is left is zero.",
        "attention without padding, whose pad_input takes all padding to be on the right",
        "first",
        _CONTEXT,
        "says that contexts are of other tokens, or moved within the row",
        {"context": _written_to_the_left},
    ),
)
