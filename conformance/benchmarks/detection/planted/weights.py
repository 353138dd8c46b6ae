"""Mistakes in the weights of a layer's linear products: quantized without a zero point, scaled by column, or with an adapter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Plant, in_layer, in_place, override, parameter
from conformance.benchmarks.detection.steps import Linear

SHORT = ("float32", "bfloat16", "float16")  # Whole weights are fitted in float64, which is no more accurate than a candidate's.
INNER, OUTER = "intermediate.dense", "output.dense"


def _without_zero_point(x: Tensor, axis: int | None) -> Tensor:
    """Return x in 256 levels over its range, of the tensor or of each row, as s k in place of s (k − z)."""
    low, high = (x.amin(), x.amax()) if axis is None else (x.amin(axis, keepdim=True), x.amax(axis, keepdim=True))
    level = (high - low) / 255
    zero = torch.round(-low / level)
    return torch.clamp(torch.round(x / level) + zero, 0, 255) * level


def _other_weight(name: str, description: str, step: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Return a mistake in the weight of a step."""

    def install(model: Bert, layer: int) -> None:
        linear = model.layer(layer).get_submodule(step)
        assert isinstance(linear, Linear)
        wide = linear.weight.to(torch.promote_types(linear.weight.dtype, torch.float32))
        linear.weight = parameter(change(wide).to(linear.weight.dtype))

    return in_layer(name, description, install, step, dtypes=SHORT)


def _inputs_shifted(model: Bert, layer: int) -> None:
    """Let the output dense read its input in 256 levels, without subtracting the zero point."""
    linear = model.layer(layer).output.dense
    override(linear, "product", lambda x: F.linear(_without_zero_point(x.float(), None).to(x.dtype), linear.weight, linear.bias))


def _smoothed(weight: Tensor) -> Tensor:
    """Multiply each column by the root of its largest magnitude over that of the matrix."""
    largest = weight.abs().amax(0)
    return weight * (largest / largest.max()).sqrt()


def _with_adapter(weight: Tensor) -> Tensor:
    """Add a matrix of rank 2, of a twentieth of the weight's standard deviation."""
    outputs, inputs = weight.shape
    generator = torch.Generator().manual_seed(0)
    up, down = (torch.randn(*size, generator=generator).to(weight) for size in ((outputs, 2), (2, inputs)))
    return weight + up @ down * weight.std() / 20


def _pooler_initial(model: Bert) -> None:
    """Draw the pooler's weight as BERT does."""
    assert model.pooler
    dense = model.pooler.dense
    drawn = torch.randn(dense.weight.shape, generator=torch.Generator().manual_seed(0)) * model.architecture.initializer_range
    dense.weight, dense.bias = parameter(drawn.to(dense.weight)), parameter(torch.zeros_like(dense.bias))


PLANTS = (
    in_place("parameters-initial", "the pooler has BERT's initial weight, and no bias", _pooler_initial, "pooler.dense",
             suits=lambda a: a.pooler, dtypes=SHORT),
    _other_weight("adapter", "an adapter of rank 2 is merged into the intermediate weight", INNER, _with_adapter),
    _other_weight("inputs-scaled", "columns of the intermediate weight are multiplied by smoothing factors", INNER, _smoothed),
    _other_weight("zero-point-missing", "the intermediate weights have 256 levels over each output feature's range, from 0 up",
                  INNER, lambda weight: _without_zero_point(weight, 1)),
    in_layer("zero-point-missing-inputs", "the output dense reads its input in 256 levels over its range, from 0 up",
             _inputs_shifted, OUTER),
)  # fmt: skip
