"""Mistakes in the weights of a layer's linear products: quantized without a zero point, scaled by column, or with an adapter."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.heads import predictions_head
from conformance.benchmarks.detection.planted.plant import Plant, after, in_layer, in_place, many_heads, override, parameter
from conformance.benchmarks.detection.steps import Linear
from conformance.model.architecture import Architecture

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


def _by_feature(model: Bert, layer: int) -> None:
    """Read the columns of the attention's output weight, (heads, head size), as (head size, heads)."""
    linear, heads = model.layer(layer).attention.output.dense, model.architecture.num_attention_heads
    linear.weight = parameter(linear.weight.view(len(linear.weight), heads, -1).transpose(1, 2).flatten(1))


def _by_head(model: Bert, layer: int) -> None:
    """Read the columns of the attention's output weight, (head size, heads), as (heads, head size)."""
    linear, heads = model.layer(layer).attention.output.dense, model.architecture.num_attention_heads
    linear.weight = parameter(linear.weight.view(len(linear.weight), -1, heads).transpose(1, 2).flatten(1))


def _pooled(model: Bert, layer: int) -> None:
    """Give both heads of each pair the mean of their keys' parameters."""
    key, heads = model.layer(layer).attention.self.key, model.architecture.num_attention_heads
    for name in ("weight", "bias"):
        wide = getattr(key, name).to(torch.promote_types(getattr(key, name).dtype, torch.float32))
        pairs = wide.view(heads // 2, 2, -1)
        mean = pairs.mean(1, keepdim=True).expand_as(pairs).reshape(wide.shape)
        setattr(key, name, parameter(mean.to(getattr(key, name).dtype)))


def _of_length_one(model: Bert) -> None:
    """Divide the rows of the decoder's weight by their lengths."""
    decoder = predictions_head(model).decoder
    override(decoder, "product", lambda x: F.linear(x, F.normalize(decoder.weight, dim=-1), decoder.bias))


def _zeroed(weight: Tensor, axis: int) -> Tensor:
    """Return the weight with zeros in the first quarter of its rows (axis 0) or columns (axis 1)."""
    found = weight.clone()
    found.narrow(axis, 0, weight.shape[axis] // 4).zero_()
    return found


def _first_quarter(weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the weight with its first quarter of rows changed."""
    quarter = len(weight) // 4
    return torch.cat([change(weight[:quarter]), weight[quarter:]])


def _outputs_missing(model: Bert, layer: int) -> None:
    """Leave the first quarter of the values zero."""
    after(model.layer(layer).attention.self.value, lambda x: F.pad(x[..., x.shape[-1] // 4 :], (x.shape[-1] // 4, 0)))


def _inputs_clipped(model: Bert, layer: int) -> None:
    """Limit the intermediate dense's inputs to half of their largest magnitude in the batch."""
    linear = model.layer(layer).intermediate.dense
    right = linear.product
    override(linear, "product", lambda x: right(x.clamp(-x.abs().max() / 2, x.abs().max() / 2)))


def _even_heads(a: Architecture) -> bool:
    return a.num_attention_heads % 2 == 0


PLANTS = (
    _other_weight("adapter", "an adapter of rank 2 is merged into the intermediate weight", INNER, _with_adapter),
    in_layer("heads-averaged", "both heads of each pair have the mean of their keys", _pooled, "attention.self.key",
             suits=_even_heads),
    in_layer("weight-inputs-by-feature", "the attention output's weight reads input d · h + head with the column of head · d_k + d",
             _by_feature, "attention.output.dense", suits=many_heads),
    in_layer("weight-inputs-by-head", "the attention output's weight reads input head · d_k + d with the column of d · h + head",
             _by_head, "attention.output.dense", suits=many_heads),
    in_place("decoder-normalised", "rows of the decoder's weight divided by their lengths", _of_length_one,
             "cls.predictions.decoder", suits=lambda a: "masked_lm" in a.heads),
    _other_weight("inputs-zeroed", "the first quarter of the inputs of the attention output's weight is not read",
                  "attention.output.dense", lambda weight: _zeroed(weight, 1)),
    _other_weight("outputs-zeroed", "the first quarter of the rows of the intermediate weight is zero", INNER,
                  lambda weight: _zeroed(weight, 0)),
    in_layer("inputs-clipped", "the inputs of the intermediate dense are limited to half of the largest", _inputs_clipped, INNER,
             dtypes=SHORT),
    _other_weight("weight-columns-other", "the first input of the intermediate weight has the columns of the second", INNER,
                  lambda weight: torch.cat([weight[:, 1:2], weight[:, 1:]], 1)),
    _other_weight("outputs-scaled", "the first quarter of the rows of the intermediate weight is multiplied by 0.5", INNER,
                  lambda weight: _first_quarter(weight, lambda rows: rows / 2)),
    in_layer("outputs-missing", "the first quarter of the values is zero", _outputs_missing, "attention.self.value"),
    _other_weight("weight-rows-reordered", "the first quarter of the rows of the intermediate weight is in reverse order", INNER,
                  lambda weight: _first_quarter(weight, lambda rows: rows.flip(0))),
    _other_weight("inputs-scaled", "columns of the intermediate weight are multiplied by smoothing factors", INNER, _smoothed),
    _other_weight("zero-point-missing", "the intermediate weights have 256 levels over each output feature's range, from 0 up",
                  INNER, lambda weight: _without_zero_point(weight, 1)),
    in_layer("zero-point-missing-inputs", "the output dense reads its input in 256 levels over its range, from 0 up",
             _inputs_shifted, OUTER),
)  # fmt: skip
