"""Mistakes in quantised weights and activations, which are dequantised before they are used."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Port, Weights, prefix

_SQUARE = (*(f"attention.self.{name}" for name in ("query", "key", "value")), "attention.output.dense")
_ATTENDED, _INNER, _OUTER = "attention.output.LayerNorm", "intermediate.dense", "output.dense"
_LARGEST_INT8, _LARGEST_UINT8, _LARGEST_INT4 = 127, 255, 7
_CALIBRATED = 1.0
"""The largest activation that was seen in calibration."""


def _other_axis(weights: Weights, layers: tuple[int, ...]) -> None:
    """The weights in int8 with a scale for each output, taken for a scale for each input."""
    for layer in layers:
        for name in (f"{prefix(layer)}.{part}.weight" for part in _SQUARE):
            wide = weights[name].float()
            scale = wide.abs().amax(1) / _LARGEST_INT8
            weights[name] = ((wide / scale[:, None]).round() * scale).to(weights[name].dtype)


def _no_zero_point(weights: Weights, layers: tuple[int, ...]) -> None:
    """The weights in uint8, the zero point of which is not taken off."""
    for layer in layers:
        name = f"{prefix(layer)}.{_INNER}.weight"
        wide = weights[name].float()
        scale = (wide.max() - wide.min()) / _LARGEST_UINT8
        weights[name] = (((wide - wide.min()) / scale).round() * scale).to(weights[name].dtype)


def _nibbles_swapped(weights: Weights, layers: tuple[int, ...]) -> None:
    """The weights in int4, two inputs in a byte, of which the second comes first."""
    for layer in layers:
        name = f"{prefix(layer)}.{_OUTER}.weight"
        wide = weights[name].float()
        scale = wide.abs().amax(1, keepdim=True) / _LARGEST_INT4
        pairs = (wide / scale).round().view(len(wide), -1, 2)
        weights[name] = (pairs.flip(-1).flatten(1) * scale).to(weights[name].dtype)


def _clipped(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["outer"](port, layer, x.clamp(-_CALIBRATED, _CALIBRATED))


def _smooth(weights: Weights, layers: tuple[int, ...]) -> None:
    """The norm's features divided by a power of two each, by which the next linear layer's inputs are multiplied."""
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        linear, *normed = (f"{prefix(layer)}.{name}" for name in (f"{_INNER}.weight", f"{_ATTENDED}.weight", f"{_ATTENDED}.bias"))
        scale = (2.0 ** torch.randint(0, 3, weights[normed[0]].shape, generator=generator)).to(weights[linear].dtype)
        weights[linear] = weights[linear] * scale
        for name in normed:
            weights[name] = weights[name] / scale


MISTAKES = (
    Mistake(
        "scales along the other axis",
        "The square weights of the attention are int8 with a scale for each output, which is used for each input.",
        "the axis of DequantizeLinear, as in onnxruntime pull request 28228 and tract pull request 2849",
        "all",
        _SQUARE,
        "says that the scales are along the wrong axis, or that the weights are not the checkpoint's or are wrongly scaled",
        load=_other_axis,
    ),
    Mistake(
        "zero point left out",
        "The weight of the feed-forward's first layer is uint8, and its zero point is not taken off.",
        "compressed-tensors issue 458, QuEST issue 18",
        "some",
        (_INNER,),
        "says that the zero point is left out, that a constant is added to the weights, or that they are not the checkpoint's",
        load=_no_zero_point,
    ),
    Mistake(
        "nibbles swapped",
        "The weight of the feed-forward's second layer is int4, and in each byte the second of two inputs is taken for the first.",
        "the order of nibbles, on which unpackers differ: 1bit-MONSTER issue 1268, llm-compressor issue 1613",
        "last",
        (_OUTER,),
        "says that neighbouring inputs of the weight are swapped, or that the weight is permuted or is not the checkpoint's",
        load=_nibbles_swapped,
    ),
    Mistake(
        "calibrated on too small a range",
        "The input of the feed-forward's second layer is clipped at 1.",
        "a static range of activations, found on data with smaller ones; common in exercises",
        "all",
        (_OUTER,),
        "says that the input is clipped or saturated, or that large activations are too small",
        {"outer": _clipped},
    ),
    Mistake(
        "smoothed norm before a residual",
        "The norm after the attention is divided by scales that the next linear layer makes up for, and the residual does not.",
        "SmoothQuant in a network with its norms after the residuals: smoothquant issue 21, optimum-quanto pull request 52",
        "all",
        (_ATTENDED, _INNER),
        "says that the norm's parameters and the linear layer's weights are scaled, or are not the checkpoint's",
        load=_smooth,
    ),
)
