"""Products of lower precision than promised, and dropout that is still active."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import Plant, in_layer, override
from conformance.benchmarks.detection.steps import Linear

PROJECTIONS = (
    *(f"attention.self.{n}" for n in ("query", "key", "value")), "attention.output.dense", "intermediate.dense", "output.dense",
)  # fmt: skip
DROPOUT = 0.1
HALVES = ("bfloat16", "float16")
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip

# x Wᵀ + b in lower precision, converted back to the format of x.
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def _in(dtype: torch.dtype) -> Product:
    """Return a product with operands and result in another format, as under autocast."""
    return lambda x, weight, bias: F.linear(x.to(dtype), weight.to(dtype), bias.to(dtype)).to(x.dtype)


def _tf32(x: Tensor) -> Tensor:
    """Round to 11 significant bits, ties to even."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)


def _cut_to_tf32(x: Tensor) -> Tensor:
    """Truncate to 11 significant bits."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.trunc(mantissa * 2**11) / 2**11, exponent)


def _integers(weight: Tensor, largest: int = 127) -> Tensor:
    """Round to multiples of 1/`largest` of the tensor's largest magnitude."""
    level = weight.abs().max() / largest
    return torch.round(weight / level) * level


def _integers_by_row(weight: Tensor, largest: int = 127) -> Tensor:
    """Round to multiples of 1/`largest` of the largest magnitude of each output feature."""
    level = weight.abs().amax(-1, keepdim=True) / largest
    return torch.round(weight / level) * level


def _blocks(weight: Tensor, size: int, quantised: Callable[[Tensor], Tensor]) -> Tensor:
    return quantised(weight.view(-1, size)).view(weight.shape)


def _q8_0(w: Tensor) -> Tensor:
    level = w.abs().amax(-1, keepdim=True) / 127
    return torch.round(w / level) * level.half().float()


def _q4_0(w: Tensor) -> Tensor:
    level = w.gather(-1, w.abs().argmax(-1, keepdim=True)) / -8
    return ((w / level + 8.5).floor().clamp(0, 15) - 8) * level.half().float()


def _nf4(w: Tensor) -> Tensor:
    levels = torch.tensor(NF4, device=w.device)
    largest = w.abs().amax(-1, keepdim=True)
    return levels[(w[..., None] / largest[..., None] - levels).abs().argmin(-1)] * largest


def _float8(weight: Tensor) -> Tensor:
    level = weight.abs().max() / 448
    return (weight / level).to(torch.float8_e4m3fn).to(weight.dtype) * level


def _dynamic(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Quantize as torch's quantize_dynamic does without reduced range: the inputs to 256 levels over their range."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    level = (high - low) / 255
    zero = torch.round(-low / level)
    return F.linear((torch.clamp(torch.round(x / level) + zero, 0, 255) - zero) * level, _integers(weight), bias)


def _inputs_in_float8(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.to(torch.float8_e4m3fn).to(x.dtype), weight, bias)


def _without_last(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Leave out the last eighth of the inputs."""
    used = x.shape[-1] * 7 // 8
    return F.linear(x[..., :used], weight[:, :used], bias)


def _wrapped(weight: Tensor) -> Tensor:
    level = weight.abs().amax(-1, keepdim=True) / 128
    integers = torch.round(weight / level)
    return torch.where(integers == 128, -integers, integers) * level


def _offset(weight: Tensor) -> Tensor:
    """Read the weight eight elements too early, where zeros are."""
    flat = weight.flatten()
    return torch.cat([torch.zeros_like(flat[:8]), flat[:-8]]).view_as(weight)


def _bits_as_half(weight: Tensor) -> Tensor:
    return weight.bfloat16().view(torch.float16).to(weight.dtype)


def _cut(x: Tensor) -> Tensor:
    """Set the lower sixteen bits to zero."""
    return (x.float().view(torch.int32) & -0x10000).view(torch.float32).to(x.dtype)


def _two_of_four(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, 4)
    return groups.scatter(-1, groups.abs().argsort(-1)[..., :2], 0.0).flatten(-2)


def _pruned(weight: Tensor) -> Tensor:
    return torch.where(weight.abs() < weight.abs().quantile(0.3), 0.0, weight)


def _of_four_parts(dtype: torch.dtype) -> Product:
    """Return the product whose sums over four parts of the inputs are rounded to a format."""

    def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        parts = zip(x.chunk(4, -1), weight.chunk(4, -1), strict=True)
        return torch.stack([F.linear(a, b).to(dtype).to(x.dtype) for a, b in parts]).sum(0) + bias

    return product


def _linears(model: Bert, layer: int) -> tuple[Linear, ...]:
    changed = model.layer(layer)
    own = changed.attention.self
    return (own.query, own.key, own.value, changed.attention.output.dense, changed.intermediate.dense, changed.output.dense)


def _product(name: str, description: str, product: Product, dtypes: tuple[str, ...] = ("float32",)) -> Plant:
    def rounded(linear: Linear) -> Callable[[Tensor], Tensor]:
        return lambda x: product(x, linear.weight, linear.bias)

    def install(model: Bert, layer: int) -> None:
        for linear in _linears(model, layer):
            override(linear, "product", rounded(linear))

    return in_layer(name, description, install, *PROJECTIONS, dtypes=dtypes)


def _active_dropout(model: Bert, layer: int) -> None:
    """Apply dropout as in training.

    It is seeded on each call, so that a run can be repeated, and torch's global generator is not changed.
    """

    def dropped(x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(layer)
            return F.dropout(x, DROPOUT, training=True)

    override(model.layer(layer).attention.output.dropout, "forward", dropped)


PLANTS = (
    _product("precision-bfloat16", "a layer's linear products have operands and results rounded to bfloat16",
             _in(torch.bfloat16)),
    _product("precision-float16", "a layer's linear products have operands and results rounded to float16", _in(torch.float16)),
    _product("precision-tf32", "operands of a layer's linear products rounded to 11 significant bits",
             lambda x, weight, bias: F.linear(_tf32(x), _tf32(weight), bias)),
    _product("precision-tf32-truncated", "operands of a layer's linear products truncated to 11 significant bits",
             lambda x, weight, bias: F.linear(_cut_to_tf32(x), _cut_to_tf32(weight), bias)),
    _product("result-bfloat16", "results of a layer's linear products rounded to bfloat16",
             lambda x, weight, bias: F.linear(x, weight, bias).bfloat16().to(x.dtype)),
    _product("result-float16", "results of a layer's linear products rounded to float16",
             lambda x, weight, bias: F.linear(x, weight, bias).half().to(x.dtype)),
    _product("precision-int8-channel", "weights of a layer's linear products rounded to 255 levels an output feature",
             lambda x, weight, bias: F.linear(x, _integers_by_row(weight), bias)),
    _product("precision-int8-block", "weights of a layer's linear products rounded to 255 levels in blocks of 32 inputs",
             lambda x, weight, bias: F.linear(x, _blocks(weight, 32, _q8_0), bias)),
    _product("precision-int4-block", "weights of a layer's linear products rounded to 16 levels in blocks of 32 inputs",
             lambda x, weight, bias: F.linear(x, _blocks(weight, 32, _q4_0), bias)),
    _product("precision-nf4-block", "weights of a layer's linear products rounded to the 16 levels of NF4 in blocks of 64 inputs",
             lambda x, weight, bias: F.linear(x, _blocks(weight, 64, _nf4), bias)),
    _product("precision-float8", "weights of a layer's linear products rounded to float8 E4M3, scaled by tensor",
             lambda x, weight, bias: F.linear(x, _float8(weight), bias)),
    _product("precision-int4", "weights of a layer's linear products rounded to 15 levels a tensor",
             lambda x, weight, bias: F.linear(x, _integers(weight, 7), bias)),
    _product("precision-int4-channel", "weights of a layer's linear products rounded to 15 levels an output feature",
             lambda x, weight, bias: F.linear(x, _integers_by_row(weight, 7), bias)),
    _product("weight-pairs-exchanged", "columns 2i and 2i + 1 of a layer's weights are exchanged",
             lambda x, weight, bias: F.linear(x, weight.view(len(weight), -1, 2).flip(-1).flatten(-2), bias)),
    _product("weight-inputs-rotated", "the halves of the inputs of a layer's weights are exchanged",
             lambda x, weight, bias: F.linear(x, weight.roll(weight.shape[1] // 2, 1), bias)),
    _product("weight-offset", "a layer's weights are read eight elements too early",
             lambda x, weight, bias: F.linear(x, _offset(weight), bias)),
    _product("precision-int8-wrapped",
             "a layer's weights rounded to multiples of max / 128 of an output feature, +128 becoming −128",
             lambda x, weight, bias: F.linear(x, _wrapped(weight), bias)),
    _product("result-bfloat16-truncated", "a layer's products with their lower sixteen bits set to zero",
             lambda x, weight, bias: _cut(F.linear(x, weight, bias))),
    _product("weights-bfloat16-as-float16", "bits of the weights of a layer's products in bfloat16, read as float16",
             lambda x, weight, bias: F.linear(x, _bits_as_half(weight), bias)),
    _product("precision-int8-dynamic", "weights of a layer's products have 255 levels a tensor, inputs 256 levels over their range",
             _dynamic),
    _product("precision-float8-inputs", "inputs of a layer's products rounded to float8 E4M3", _inputs_in_float8),
    _product("result-float8", "results of a layer's products rounded to float8 E4M3",
             lambda x, weight, bias: F.linear(x, weight, bias).to(torch.float8_e4m3fn).to(x.dtype)),
    _product("precision-int8-inputs", "inputs of a layer's products rounded to 255 levels of a call's largest magnitude",
             lambda x, weight, bias: F.linear(_integers(x), weight, bias)),
    _product("inputs-last-unread", "products of a layer without the last eighth of their inputs", _without_last),
    _product("weight-two-of-four", "the two smallest of every four weights of a layer's products are zero",
             lambda x, weight, bias: F.linear(x, _two_of_four(weight), bias)),
    _product("weight-pruned", "the smallest 30 % of the weights of a layer's products are zero",
             lambda x, weight, bias: F.linear(x, _pruned(weight), bias)),
    _product("accumulated-float16", "a layer's products are sums of four parts, each rounded to float16",
             _of_four_parts(torch.float16)),
    _product("accumulated-bfloat16", "a layer's products are sums of four parts, each rounded to bfloat16",
             _of_four_parts(torch.bfloat16)),
    _product("precision-int8", "weights of a layer's linear products rounded to 255 levels a tensor",
             lambda x, weight, bias: F.linear(x, _integers(weight), bias)),
    _product("precision-int8-held", "weights of a layer's linear products rounded to 255 levels a tensor, in half precision",
             lambda x, weight, bias: F.linear(x, _integers(weight), bias), HALVES),
    _product("precision-int8-channel-held",
             "weights of a layer's linear products rounded to 255 levels an output feature, in half precision",
             lambda x, weight, bias: F.linear(x, _integers_by_row(weight), bias), HALVES),
    in_layer("dropout-active", "attention output dropout of 0.1 in evaluation", _active_dropout, "attention.output.dropout"),
)  # fmt: skip
