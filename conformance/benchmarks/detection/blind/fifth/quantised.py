"""Mistakes of quantised weights and integer kernels."""

import torch
from torch import Tensor

from conformance.benchmarks.detection.blind.port import Mistake, Port, Weights, prefix

_NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
"""Levels of the 4-bit NormalFloat (Dettmers et al. 2023, appendix E)."""

_PROJECTIONS = ("attention.self.query", "attention.self.key", "attention.self.value")


def _wraps(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.intermediate.dense.weight"
        matrix = weights[name].float()
        scale = matrix.abs().amax(1, keepdim=True) / 128
        levels = (matrix / scale).round()
        weights[name] = (torch.where(levels == 128, -128, levels) * scale).to(weights[name].dtype)


def _scales_of_columns(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.attention.output.dense.weight"
        matrix = weights[name].float()
        scale = matrix.abs().amax(1) / 127
        weights[name] = ((matrix / scale[:, None]).round() * scale).to(weights[name].dtype)


def _normal_float(weights: Weights, layers: tuple[int, ...]) -> None:
    levels = torch.tensor(_NF4)
    for layer in layers:
        for part in _PROJECTIONS:
            name = f"{prefix(layer)}.{part}.weight"
            blocks = weights[name].float().view(-1, 64)
            scale = blocks.abs().amax(1, keepdim=True)
            between = (levels[1:] + levels[:-1]) / 2
            nearest = levels.to(blocks.device)[torch.bucketize(blocks / scale, between.to(blocks.device))]
            weights[name] = (nearest * scale).view_as(weights[name]).to(weights[name].dtype)


def _order_ignored(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.attention.self.query.weight"
        weights[name] = weights[name][:, weights[name].float().norm(dim=0).argsort(descending=True)]


def _saturates(port: Port, layer: int, x: Tensor) -> Tensor:
    weight, bias = (port.weights[f"{prefix(layer)}.intermediate.dense.{part}"].float() for part in ("weight", "bias"))
    given = x.float()
    lowest, highest = given.amin().clamp(max=0), given.amax().clamp(min=0)
    scale, of_weight = (highest - lowest) / 255, weight.abs().amax(1) / 127
    zero = (-lowest / scale).round()
    bytes_of_input, bytes_of_weight = (given / scale + zero).round().clamp(0, 255), (weight / of_weight[:, None]).round()
    products = bytes_of_input[..., None, :] * bytes_of_weight
    total = (products[..., ::2] + products[..., 1::2]).clamp(-32768, 32767).sum(-1) - zero * bytes_of_weight.sum(1)
    made: Tensor = total * scale * of_weight + bias
    return made.to(x.dtype)


MISTAKES = (
    Mistake(
        "+128 wraps around",
        "The intermediate weight is rounded to signed bytes of row / 128, and where that is +128 it becomes -128.",
        "a quantiser with 128 for 127 and a cast that does not saturate",
        "all",
        ("intermediate.dense",),
        "says that the weight's largest entries have the wrong sign, or that it is not the checkpoint's",
        load=_wraps,
    ),
    Mistake(
        "scales along the wrong side",
        "The attention's output weight is quantised with a scale for each row, which is applied to columns.",
        "a dequantisation of a square matrix in a layout of the other order",
        "all",
        ("attention.output.dense",),
        "says that rows or columns of the weight are scaled, or that it is not the checkpoint's",
        load=_scales_of_columns,
    ),
    Mistake(
        "projections in NF4",
        "The weights of query, key and value are rounded to NF4 in blocks of 64.",
        "bitsandbytes' load_in_4bit in a place that should not have it",
        "first",
        _PROJECTIONS,
        "says that the weights are quantised to four bits",
        load=_normal_float,
    ),
    Mistake(
        "order of columns ignored",
        "The query weight's columns are stored in the order of their norms, the input is in its own.",
        "GPTQ with act-order, in a kernel that ignores g_idx",
        "last",
        ("attention.self.query",),
        "says that columns of the weight are permuted, or that it is not the checkpoint's",
        load=_order_ignored,
    ),
    Mistake(
        "sums of pairs saturate",
        "Inputs and weights are bytes, and each sum of two products saturates at 16 bits.",
        "an integer kernel for x86 without VNNI, whose weights were not reduced to seven bits",
        "all",
        ("intermediate.dense",),
        "says that the product is of integers, quantised, or saturates",
        {"inner": _saturates},
    ),
)
