"""Mistakes in the weights and numbers of the layers: conversion, adapters, shards and quantisation."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import OPERATIONS, Mistake, Operation, Port, Weights, prefix
from conformance.benchmarks.detection.blind.third.tools import DENSE, NORMS, noise, rounded

_PARTS = DENSE[:3]
_SQUARE = DENSE[:4]
_STEPS = dict(zip(DENSE, ("query", "key", "value", "attention_dense", "inner", "outer"), strict=True))
_ACTIVATION = "intermediate.intermediate_act_fn"

Change = Callable[[Tensor], Tensor]


def _changed(change: Change, names: tuple[str, ...]) -> Callable[[Weights, tuple[int, ...]], None]:
    """Changes the matrices of the modules of these names."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for layer in layers:
            for name in names:
                key = f"{prefix(layer)}.{name}.weight"
                weights[key] = change(weights[key]).contiguous()

    return load


def _interleaved(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for parameter in ("weight", "bias"):
            names = [f"{prefix(layer)}.{part}.{parameter}" for part in _PARTS]
            fused = torch.stack([weights[name] for name in names])
            thirds = fused.transpose(0, 1).reshape(fused.shape)
            weights.update(zip(names, thirds.unbind(), strict=True))


def _exchanged(first: str, second: str) -> Callable[[Weights, tuple[int, ...]], None]:
    """Exchanges the parameters of two modules."""

    def load(weights: Weights, layers: tuple[int, ...]) -> None:
        for layer in layers:
            for parameter in ("weight", "bias"):
                a, b = (f"{prefix(layer)}.{name}.{parameter}" for name in (first, second))
                weights[a], weights[b] = weights[b], weights[a]

    return load


def _gamma_as_beta(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in NORMS:
            a, b = (f"{prefix(layer)}.{name}.{parameter}" for parameter in ("weight", "bias"))
            weights[a], weights[b] = weights[b], weights[a]


def _initial_norms(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in NORMS:
            weight = weights[f"{prefix(layer)}.{name}.weight"]
            weights[f"{prefix(layer)}.{name}.weight"] = torch.ones_like(weight)
            weights[f"{prefix(layer)}.{name}.bias"] = torch.zeros_like(weight)


def _first_layers(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for name in (*DENSE, *NORMS):
            for parameter in ("weight", "bias"):
                weights[f"{prefix(layer)}.{name}.{parameter}"] = weights[f"{prefix(0)}.{name}.{parameter}"]


def _four_bits(weight: Tensor) -> Tensor:
    return rounded(weight, 7)


def _zero_point_lost(weight: Tensor) -> Tensor:
    step = (weight.amax() - weight.amin()) / 255
    return weight - (weight.amin() / step).round() * step


def _nibbles_exchanged(weight: Tensor) -> Tensor:
    return weight.view(len(weight), -1, 2).flip(2).flatten(1)


def _groups_of_others(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, 8)
    scales = groups.abs().amax(2, keepdim=True) / 127
    return ((groups / scales).round() * scales.roll(1, 1)).flatten(1)


def _smoothed(weight: Tensor) -> Tensor:
    return weight * weight.abs().amax(0, keepdim=True).rsqrt() * weight.abs().amax().sqrt()


def _in_bfloat16(name: str) -> Operation:
    def linear(port: Port, layer: int, x: Tensor) -> Tensor:
        weight, bias = (port.weights[f"{prefix(layer)}.{name}.{parameter}"] for parameter in ("weight", "bias"))
        return F.linear(x.bfloat16().to(x.dtype), weight.bfloat16().to(x.dtype), bias.bfloat16().to(x.dtype)).bfloat16().to(x.dtype)

    return linear


_AUTOCAST: Mapping[str, Operation] = {step: _in_bfloat16(name) for name, step in _STEPS.items()}


def _half_of_columns(port: Port, layer: int, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    name = f"{prefix(layer)}.output.dense"
    return F.linear(x[..., :half], port.weights[f"{name}.weight"][:, :half], port.weights[f"{name}.bias"])


def _bias_of_each_shard(port: Port, layer: int, x: Tensor) -> Tensor:
    return OPERATIONS["attention_dense"](port, layer, x) + port.weights[f"{prefix(layer)}.attention.output.dense.bias"]


def _adapter(port: Port, layer: int, x: Tensor) -> Tensor:
    out = OPERATIONS["outer"](port, layer, x)
    down = noise(out[0, 0].expand(4, -1), 23) / math.sqrt(out.shape[-1])
    up = noise(out[0, 0].expand(4, -1), 24) * 0.1
    return out + (out @ down.T).relu() @ up


def _clipped(port: Port, layer: int, x: Tensor) -> Tensor:
    right = OPERATIONS["activation"](port, layer, x)
    limit = 2 * right.square().mean().sqrt()
    return right.clamp(-limit, limit)


def _cached(name: str) -> Operation:
    return lambda port, layer, x: port.found[f"encoder.layer.0.{name}"]


MISTAKES = (
    Mistake(
        "square matrices not transposed",
        "The square matrices of a layer are not transposed.",
        "TensorFlow's kernels, whose other matrices alone fail to load as they are",
        "all",
        _SQUARE,
        "says that matrices are transposed",
        load=_changed(lambda weight: weight.T, _SQUARE),
    ),
    Mistake(
        "oblong matrices reshaped",
        "The matrices of the feed-forward network are reshaped where they should be transposed.",
        "files in column-major order, from Julia or MATLAB",
        "all",
        DENSE[4:],
        "says that the matrices are reshaped rather than transposed, or in column-major order",
        load=_changed(lambda weight: weight.T.reshape(weight.shape), DENSE[4:]),
    ),
    Mistake(
        "key and value exchanged",
        "The second and the last third of the fused projection are exchanged.",
        "a fused QKV, read as Q, V, K",
        "all",
        DENSE[1:3],
        "says that key and value are exchanged",
        load=_exchanged("attention.self.key", "attention.self.value"),
    ),
    Mistake(
        "fused projection by rows",
        "Rows of query, key and value that alternate in the fused projection are read in thirds.",
        "checkpoints of interleaved QKV, as in Megatron",
        "all",
        _PARTS,
        "says that query, key and value are mixed, or interleaved, or split wrongly",
        load=_interleaved,
    ),
    Mistake(
        "norms of a layer exchanged",
        "The two norms of a layer have each other's parameters.",
        "names that end in output.LayerNorm, matched by their ends",
        "all",
        NORMS,
        "says that the norms of a layer are exchanged",
        load=_exchanged(*NORMS),
    ),
    Mistake(
        "gamma as bias",
        "Weight and bias of the norms are exchanged.",
        "parameters in alphabetical order, beta before gamma",
        "all",
        NORMS,
        "says that weight and bias of the norms are exchanged",
        load=_gamma_as_beta,
    ),
    Mistake(
        "norms left as initialised",
        "The norms of the layers have weights of 1 and biases of 0.",
        "gamma and beta of an old checkpoint, loaded with strict=False",
        "all",
        NORMS,
        "says that the norms have no weight and bias, or initial ones",
        load=_initial_norms,
    ),
    Mistake(
        "one layer n times",
        "Every layer has the parameters of the first.",
        "[layer] * n, or a scan over one layer's parameters",
        "later",
        (*DENSE, *NORMS),
        "says that layers share, or use the first layer's, parameters",
        load=_first_layers,
    ),
    Mistake(
        "keys and values of the first layer",
        "Later layers use the keys and values of the first.",
        "a cache whose index of the layer is always 0",
        "later",
        DENSE[1:3],
        "says that the key and value of the first, or of another, layer are used",
        {"key": _cached("attention.self.key"), "value": _cached("attention.self.value")},
    ),
    Mistake(
        "an adapter in place",
        "A bottleneck with a residual follows the feed-forward network.",
        "adapters of fine-tuning, left active",
        "last",
        ("output.dense",),
        "says that there is an adapter, or a bottleneck with a residual",
        {"outer": _adapter},
    ),
    Mistake(
        "one shard of the feed-forward",
        "The last linear step sums over the first half of its inputs alone.",
        "a row-parallel linear step without the all-reduce",
        "all",
        ("output.dense",),
        "says that half of the inputs, columns or intermediate units is missing, or names the all-reduce",
        {"outer": _half_of_columns},
    ),
    Mistake(
        "bias of both shards",
        "The bias of attention's projection is added twice.",
        "a row-parallel linear step that adds its bias on each of two ranks",
        "all",
        ("attention.output.dense",),
        "says that the bias is added twice, or once for each rank",
        {"attention_dense": _bias_of_each_shard},
    ),
    Mistake(
        "four bits for a matrix",
        "The matrices of the layers are rounded to 15 levels, with one scale for a matrix.",
        "a quantiser to four bits without groups",
        "all",
        DENSE,
        "says that the weights are rounded, or quantised",
        load=_changed(_four_bits, DENSE),
    ),
    Mistake(
        "zero point left out",
        "The zero point is not subtracted from the unsigned weights.",
        "asymmetric quantisation read as symmetric",
        "all",
        ("intermediate.dense",),
        "says that a zero point is missing, or that the weights have an offset",
        load=_changed(_zero_point_lost, ("intermediate.dense",)),
    ),
    Mistake(
        "nibbles exchanged",
        "Columns 2i and 2i + 1 of the feed-forward's last matrix are exchanged.",
        "four-bit numbers unpacked with the high nibble first",
        "all",
        ("output.dense",),
        "says that neighbouring columns, or pairs of weights, are exchanged",
        load=_changed(_nibbles_exchanged, ("output.dense",)),
    ),
    Mistake(
        "scales of the group before",
        "A group of eight columns is multiplied by the scales of the group before.",
        "GPTQ with act-order whose g_idx is ignored",
        "some",
        DENSE,
        "says that the scales of groups are wrong, or that columns are scaled wrongly",
        load=_changed(_groups_of_others, DENSE),
    ),
    Mistake(
        "smoothing in the weights alone",
        "The columns of the feed-forward's first matrix are scaled, the norm before it is not.",
        "SmoothQuant applied to half of the pair",
        "all",
        ("intermediate.dense",),
        "says that columns, or input channels, of the matrix are scaled",
        load=_changed(_smoothed, ("intermediate.dense",)),
    ),
    Mistake(
        "activations clipped",
        "What GELU gives is clipped at twice its root mean square.",
        "static quantisation with a range from few calibration rows",
        "all",
        (_ACTIVATION,),
        "says that activations are clipped, or bounded, or saturate",
        {"activation": _clipped},
    ),
    Mistake(
        "linear steps in bfloat16",
        "The linear steps of the layers are in bfloat16.",
        "torch.autocast left on for inference",
        "all",
        DENSE,
        "says that linear steps are in bfloat16, or of low precision",
        dict(_AUTOCAST),
    ),
)
"""All of this theme."""
