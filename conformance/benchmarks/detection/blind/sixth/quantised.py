"""Mistakes of quantization and of mixed precision."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights, prefix

_FEED_FORWARD = ("intermediate.dense", "output.dense")


def _to_each(names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Callable[[Weights, tuple[int, ...]], None]:
    """A change of these matrices in each layer."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for name in (f"{prefix(layer)}.{name}.weight" for layer in layers for name in names):
            weights[name] = change(weights[name].float()).to(weights[name].dtype)

    return load


def _in_four_bits(weight: Tensor) -> Tensor:
    """Q4_0: blocks of 32 along a row, each with the scale of its value of greatest magnitude, which becomes -8."""
    blocks = weight.reshape(len(weight), -1, 32)
    scale = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8
    return ((blocks / scale + 8.5).floor().clamp(0, 15) - 8).mul(scale).flatten(1)


def _scaled_along_rows(weight: Tensor) -> Tensor:
    scales = weight.abs().amax(1) / 127
    return (weight / scales[:, None]).round() * scales


def _smoothed(weight: Tensor) -> Tensor:
    return weight * (weight.abs().amax(0) / weight.abs().amax()).sqrt()


def _without_zero_point(port: Port, layer: int, x: Tensor) -> Tensor:
    least, greatest = x.float().min(), x.float().max()
    scale = (greatest - least) / 255
    zero = (-least / scale).round()
    stored = ((x.float() / scale).round() + zero).clamp(0, 255)
    name = f"{prefix(layer)}.output.dense"
    return F.linear((stored * scale).to(x.dtype), port.weights[f"{name}.weight"], port.weights[f"{name}.bias"])


def _softmax_in_bfloat16(port: Port, layer: int, x: Tensor, mask: Tensor) -> Tensor:
    short = x.bfloat16()
    return short.masked_fill(mask[:, None, None] == 0, torch.finfo(short.dtype).min).softmax(-1).to(x.dtype)


MISTAKES = (
    Mistake(
        "feed-forward network in four bits",
        "Both matrices of the feed-forward network have 4 bits, with a scale for 32 values of a row.",
        "llama.cpp's Q4_0, in a file that is taken for one of full precision",
        "all",
        _FEED_FORWARD,
        "says that the weights are quantized to 4 bits in blocks, or are not the checkpoint's",
        load=_to_each(_FEED_FORWARD, _in_four_bits),
    ),
    Mistake(
        "scales along the wrong axis",
        "8-bit weights with a scale for each output are multiplied by the scale of each input.",
        "a broadcast of (H,) scales that a square matrix does not stop",
        "all",
        ("attention.output.dense",),
        "says that columns of the weight are multiplied by what the rows should be, or that it is not the checkpoint's",
        load=_to_each(("attention.output.dense",), _scaled_along_rows),
    ),
    Mistake(
        "smoothing without its counterpart",
        "The columns of the intermediate weight are multiplied by smoothing factors, by which nothing else is divided.",
        "SmoothQuant, where the norm before is not reached because it is also a residual",
        "all",
        ("intermediate.dense",),
        "says that columns of the weight are multiplied by factors, or that it is not the checkpoint's",
        load=_to_each(("intermediate.dense",), _smoothed),
    ),
    Mistake(
        "zero point forgotten",
        "The activation is quantized to 8 bits with a zero point, which is not subtracted before the output projection.",
        "a dequantization of unsigned activations as if they were symmetric",
        "all",
        ("output.dense",),
        "says that the input of the projection is shifted by a constant",
        {"outer": _without_zero_point},
    ),
    Mistake(
        "softmax in bfloat16",
        "Scores are rounded to bfloat16 before the softmax, and so are probabilities.",
        "autocast, or a fused attention that takes bfloat16 alone",
        "all",
        ("attention.self.probs",),
        "says that the softmax is in bfloat16, or in a shorter format",
        {"probs": _softmax_in_bfloat16},
    ),
)
