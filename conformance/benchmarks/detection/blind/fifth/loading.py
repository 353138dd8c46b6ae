"""Mistakes in the layout and the names of the parameters that are loaded."""

import torch

from conformance.benchmarks.detection.blind.port import Mistake, Weights, prefix


def _columns_of_halves(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.output.dense.weight"
        weights[name] = weights[name].roll(weights[name].shape[1] // 2, 1)


def _flat_as_rows(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.intermediate.dense.weight"
        weights[name] = weights[name].t().reshape(weights[name].shape)


def _misaligned(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        name = f"{prefix(layer)}.output.dense.weight"
        flat = weights[name].flatten()
        weights[name] = torch.cat([torch.zeros_like(flat[:8]), flat[:-8]]).view_as(weights[name])


def _bias_by_suffix(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        weights[f"{prefix(layer)}.attention.output.dense.bias"] = weights[f"{prefix(layer)}.output.dense.bias"]


def _norm_by_suffix(weights: Weights, layers: tuple[int, ...]) -> None:
    for layer in layers:
        for part in ("weight", "bias"):
            of_output = weights[f"{prefix(layer)}.output.LayerNorm.{part}"]
            weights[f"{prefix(layer)}.attention.output.LayerNorm.{part}"] = of_output


MISTAKES = (
    Mistake(
        "columns of both halves exchanged",
        "The halves of the outer weight's columns are exchanged: each rank's activations meet the other rank's columns.",
        "tensor parallelism whose ranks are numbered differently for column and row parallel layers",
        "all",
        ("output.dense",),
        "says that columns of the weight are permuted, or that it is not the checkpoint's",
        load=_columns_of_halves,
    ),
    Mistake(
        "columns read as rows",
        "The memory of the intermediate weight, stored input by output, is read as output by input.",
        "a loader that takes the shape from the configuration and the bytes from a TensorFlow or Fortran-ordered file",
        "some",
        ("intermediate.dense",),
        "says that the weight is in another layout, or is not the checkpoint's",
        load=_flat_as_rows,
    ),
    Mistake(
        "weight read with an offset",
        "The outer weight is read eight numbers too early.",
        "a loader by hand that ignores, or counts twice, the alignment of tensors to 32 bytes",
        "first",
        ("output.dense",),
        "says that the weight is shifted, or is not the checkpoint's",
        load=_misaligned,
    ),
    Mistake(
        "bias found by its suffix",
        "The attention's output bias is the feed-forward network's.",
        "a loader that looks for names that end in `output.dense.bias`",
        "all",
        ("attention.output.dense",),
        "says that the bias is another one, or is not the checkpoint's",
        load=_bias_by_suffix,
    ),
    Mistake(
        "norm found by its suffix",
        "The attention's norm has the parameters of the output's norm.",
        "a loader that looks for names that end in `output.LayerNorm.weight`",
        "last",
        ("attention.output.LayerNorm",),
        "says that the norm has the other norm's parameters, or that they are not the checkpoint's",
        load=_norm_by_suffix,
    ),
)
