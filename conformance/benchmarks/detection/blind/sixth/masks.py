"""Mistakes in which keys are attended to."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, probs

_PROBS = ("attention.self.probs",)
_WINDOW = 3
_SEGMENTS = "segments"


def _by_length(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, (torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True)).to(mask.dtype))


def _of_first_row(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, mask[1:2].expand_as(mask))


def _added(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return (x + mask[:, None, None].to(x.dtype)).softmax(-1)


def _afterwards(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(-1) * mask[:, None, None].to(x.dtype)


def _inverted(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    return probs(port, layer, x, 1 - mask)


def _only(x: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the keys that are attended to and that a query sees: (S, S) or (B, 1, S, S)."""
    return x.masked_fill(~(seen & (mask[:, None, None] != 0)), torch.finfo(x.dtype).min).softmax(-1)


def _until_chunk(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    chunk = torch.arange(x.shape[-1]) // (x.shape[-1] // 2)
    return _only(x, chunk <= chunk[:, None], mask)


def _nearby(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    at = torch.arange(x.shape[-1])
    return _only(x, (at[:, None] - at).abs() <= _WINDOW, mask)


def _keeps_segments(port: Port, _: None, types: Tensor) -> Tensor:
    port.found[_SEGMENTS] = types
    return OPERATIONS["types"](port, None, types)


def _within_segments(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    is_last = layer == port.architecture.num_hidden_layers - 1
    segments = port.found.pop(_SEGMENTS) if is_last else port.found[_SEGMENTS]
    return _only(x, (segments[:, :, None] == segments[:, None])[:, None], mask)


MISTAKES = (
    Mistake(
        "mask reduced to a length",
        "The keys that are attended to are the first n of a row, n being the number of ones in its mask.",
        "an inference engine, or a varlen kernel, that takes lengths and assumes padding on the right",
        "all",
        _PROBS,
        "says that the first n keys are attended to, or that padding is assumed on the right",
        {"probs": _by_length},
    ),
    Mistake(
        "one row's mask for all",
        "All rows have the mask of the second.",
        "a broadcast of a mask that is cached from another call, or of (1, 1, 1, S)",
        "all",
        _PROBS,
        "says that another row's mask is used",
        {"probs": _of_first_row},
    ),
    Mistake(
        "mask of ones added",
        "The mask of ones and zeros is added to the scores.",
        "scaled_dot_product_attention with the mask as a float instead of a bool",
        "all",
        _PROBS,
        "says that the mask is added as it is, so that padding is attended to, with one less",
        {"probs": _added},
    ),
    Mistake(
        "masked after the softmax",
        "Probabilities of padding are set to zero after a softmax over all keys, and the others are not normalized again.",
        "a port to a runtime without where, or without a masked softmax",
        "all",
        _PROBS,
        "says that the mask is applied after the softmax",
        {"probs": _afterwards},
    ),
    Mistake(
        "mask inverted",
        "Padding is attended to, and the tokens are not.",
        "nn.MultiheadAttention's key_padding_mask, which is true for padding, given the attention mask",
        "all",
        _PROBS,
        "says that the mask is inverted",
        {"probs": _inverted},
    ),
    Mistake(
        "causal by chunks",
        "A row is computed in two chunks, of which the first does not attend to the second.",
        "chunked prefill, made for decoders and left on for encoders",
        "all",
        _PROBS,
        "says that the first half does not attend to the second, or that attention is causal by chunks",
        {"probs": _until_chunk},
    ),
    Mistake(
        "window left on",
        "A token attends to tokens at most 3 places away.",
        "ModernBERT's local layers, or a kernel's default window_size",
        "some",
        _PROBS,
        "says that attention is limited to a window, and names its width",
        {"probs": _nearby},
    ),
    Mistake(
        "segments do not attend to each other",
        "A token attends only to tokens of its own segment.",
        "packing with token types taken for the numbers of documents",
        "all",
        _PROBS,
        "says that attention is limited to the token's segment",
        {"types": _keeps_segments, "probs": _within_segments},
    ),
)
