"""Mistakes in linear products: in their parameters, their precision, and their quantisation."""

from itertools import permutations

import torch
from torch import Tensor

from conformance.benchmarks.detection.mistakes.row import HALVES, SHORT, SINGLE, row
from conformance.benchmarks.detection.tools import levels

HEADS, EVEN, THREE = "heads > 1", "heads % 2 == 0", ("query", "key", "value")
NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)  # Levels of the 4-bit NormalFloat (Dettmers et al. 2023, appendix E).
QUARTER = "cat([%s, weight[len(weight) // 4:]])"


def blocks(weight: Tensor, size: int, kind: str) -> Tensor:
    """Return the weight quantised in blocks of inputs, in one of the formats of llama.cpp, or in NF4."""
    w = weight.view(-1, size)
    largest = w.abs().amax(-1, keepdim=True)
    if kind == "q8_0":
        level = largest / 127
        return (torch.round(w / level) * level.half().to(w.dtype)).view_as(weight)
    if kind == "q4_0":
        level = w.gather(-1, w.abs().argmax(-1, keepdim=True)) / -8
        return (((w / level + 8.5).floor().clamp(0, 15) - 8) * level.half().to(w.dtype)).view_as(weight)
    steps = torch.tensor(NF4, device=w.device, dtype=w.dtype)
    return (steps[(w[..., None] / largest[..., None] - steps).abs().argmin(-1)] * largest).view_as(weight)


def bytes_of(x: Tensor, axis: int | None = None, zero_point: bool = True) -> Tensor:
    """Return x in 256 levels over its range, as s (k − z), or as s k where the zero point z is forgotten."""
    low, high = (x.amin(), x.amax()) if axis is None else (x.amin(axis, keepdim=True), x.amax(axis, keepdim=True))
    if zero_point:
        low, high = low.clamp(max=0), high.clamp(min=0)
    level = (high - low) / 255
    zero = torch.round(-low / level)
    return (torch.clamp(torch.round(x / level) + zero, 0, 255) - zero * zero_point) * level


def saturated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the product of bytes whose sums of each two products are limited to 16 bits."""
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    level, of_weight = (high - low) / 255, weight.abs().amax(-1) / 127
    zero = torch.round(-low / level)
    inputs, integers = torch.clamp(torch.round(x / level) + zero, 0, 255), torch.round(weight / of_weight[:, None])
    products = inputs[..., None, :] * integers
    pairs = (products[..., ::2] + products[..., 1::2]).clamp(-32768, 32767)
    return (pairs.sum(-1) - zero * integers.sum(-1)) * level * of_weight + bias


def wrapped(weight: Tensor) -> Tensor:
    """Return the weight in multiples of max / 128 of an output feature, +128 becoming −128."""
    level = weight.abs().amax(-1, keepdim=True) / 128
    integers = torch.round(weight / level)
    return torch.where(integers == 128, -integers, integers) * level


def in_parts(x: Tensor, weight: Tensor, bias: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the product whose sums over parts of the inputs are rounded to a format before they are added."""
    parts = zip(x.chunk(count, -1), weight.chunk(count, -1), strict=True)
    return torch.stack([(a @ b.T).to(dtype).to(x.dtype) for a, b in parts]).sum(0) + bias


def running_half(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the product whose partial sums of 16 products are added up in float16."""
    total = torch.zeros(*x.shape[:-1], len(weight), dtype=torch.float16)
    for a, b in zip(torch.split(x, 16, -1), torch.split(weight, 16, -1), strict=True):
        total = total + (a @ b.T).half()
    return total.to(x.dtype) + bias


def two_of_four(weight: Tensor) -> Tensor:
    """Return the weight with the two smallest of every four of a row zero."""
    groups = weight.view(len(weight), -1, 4)
    return groups.scatter(-1, groups.abs().argsort(-1)[..., :2], 0.0).flatten(-2)


def scales_of_neighbour(weight: Tensor) -> Tensor:
    """Return the weight in 255 levels of groups of eight columns, each multiplied by the scale of the group before."""
    groups = weight.view(len(weight), -1, 8)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.round(groups / scale) * scale.roll(1, 1)).view_as(weight)


def thirds(step: int, read: str) -> str:
    """Return a third of the fused parameters of query, key and value, read in a way in which they were not written."""
    turns = {
        "by part": "torch.stack([y.%s.view(heads, d, -1) for y in (p.query, p.key, p.value)], 1).flatten(0, 2).chunk(3)[{}]",
        "rows in turn": "torch.stack([p.query.%s, p.key.%s, p.value.%s], 1).flatten(0, 1).chunk(3)[{}]",
        "by head": "cat([p.query.%s, p.key.%s, p.value.%s]).view(heads, 3, d, -1).transpose(0, 1)[{}].flatten(0, 1)",
    }
    text = turns[read].format(step)
    weight, bias = (text.replace("%s", kind) for kind in ("weight", "bias"))
    return f"right(weight={weight}, bias=({bias}).flatten())"


def fused(read: str) -> dict[str, str]:
    """Return query, key and value with the thirds of their fused parameters."""
    return {name: thirds(step, read) for step, name in enumerate(THREE)}


def rotary_rows(first: int, second: int) -> dict[str, str]:
    """Return query and key whose rows of each head are read transposed, the biases not."""
    axes = ", ".join(str(n) if n > 0 else "d // 2" for n in (first, second))
    return dict.fromkeys(THREE[:2], f"right(weight=weight.view(-1, {axes}, H).transpose(1, 2).reshape(weight.shape))")


# fmt: off
ROWS = (
    # parameters of other steps, or in another order
    *(row(f"{a}-from-{b}", a, f"right(**p.{b})") for a, b in permutations(THREE, 2)),
    *(row(f"{a}-{b}-swapped", {a: f"right(**p.{b})", b: f"right(**p.{a})"})
      for a, b in (("query", "key"), ("query", "value"), ("key", "value"))),
    row("qkv-rotated", {"query": "right(**p.key)", "key": "right(**p.value)", "value": "right(**p.query)"}),
    row("qkv-interleaved-file", fused("by part"), suits=HEADS),
    row("qkv-interleaved-rows", fused("rows in turn")),
    row("qkv-interleaved", fused("by head"), suits=HEADS),
    row("rows of halves", rotary_rows(2, -1), says="parameters-other"),
    row("rows of pairs", rotary_rows(-1, 2), says="parameters-other"),
    row("parameters-of-module", "dense", "right(**p.value)"),
    row("parameters-other", "inner", "right(weight=weight + normal(weight.shape, i, weight) * weight.std() / 10)"),
    row("bias-missing", "inner", "right(bias=None)"),
    row("bias-negated", "inner", "right(bias=-bias)", "parameters-other"),
    row("bias-other", "dense", "right(bias=p.outer.bias)", says="parameters-other"),
    row("weight-transposed", "dense", "right(weight=weight.T)"),
    row("weight-reshaped", "inner", "right(weight=weight.T.reshape(weight.shape))", "parameters-other"),
    row("outputs reversed", "outer", "right().flip(-1)", "parameters-other"),
    row("weight-offset", "linears", "right(weight=F.pad(weight.flatten(), (8, 0))[:-8].view_as(weight))", dtypes=SINGLE,
        says="parameters-other"),
    row("weight-pairs-exchanged", "linears", "right(weight=weight.view(len(weight), -1, 2).flip(-1).flatten(-2))", dtypes=SINGLE,
        says="parameters-other"),
    row("weight-inputs-rotated", "linears", "right(weight=weight.roll(weight.shape[1] // 2, 1))", dtypes=SINGLE,
        says="parameters-other"),
    row("weight-inputs-by-feature", "dense", "right(weight=weight.view(H, heads, d).mT.flatten(1))", suits=HEADS,
        says="parameters-other"),
    row("weight-inputs-by-head", "dense", "right(weight=weight.view(H, d, heads).mT.flatten(1))", suits=HEADS,
        says="parameters-other"),
    row("weight-rows-reordered", "inner", f"right(weight={QUARTER})" % "weight[:len(weight) // 4].flip(0)", dtypes=SHORT,
        says="parameters-other"),
    row("weight-columns-other", "inner", "right(weight=cat([weight[:, 1:2], weight[:, 1:]], 1))", dtypes=SHORT,
        says="parameters-other"),
    row("features-reordered", "outer", "right().roll(H // 2, -1)", "parameters-other"),
    row("heads-averaged", "key", "merge(split(right()).unflatten(1, (-1, 2)).mean(2).repeat_interleave(2, 1))", suits=EVEN,
        says="parameters-other"),
    # missing, scaled or trained otherwise
    row("projection-missing", "dense", "x"),
    row("result-scaled", "query", "right() / root", "parameters-other"),
    row("second half of the features", "inner", "F.pad(right()[..., :len(bias) // 2], (0, len(bias) - len(bias) // 2))",
        "parameters-other"),
    row("outputs-missing", "value", "F.pad(right()[..., H // 4:], (H // 4, 0))", says="parameters-other"),
    row("outputs-zeroed", "inner", f"right(weight={QUARTER})" % "0 * weight[:len(weight) // 4]", dtypes=SHORT,
        says="parameters-other"),
    row("outputs-scaled", "inner", f"right(weight={QUARTER})" % "weight[:len(weight) // 4] / 2", dtypes=SHORT,
        says="parameters-other"),
    row("inputs-zeroed", "dense", "right(x=F.pad(x[..., H // 4:], (H // 4, 0)))", dtypes=SHORT, says="parameters-other"),
    row("inputs-scaled", "inner", "right(weight=weight * (weight.abs().amax(0) / weight.abs().max()).sqrt())", dtypes=SHORT,
        says="parameters-other"),
    row("inputs-clipped", "inner", "right(x=x.clamp(-x.abs().max() / 2, x.abs().max() / 2))", dtypes=SHORT),
    row("inputs-last-unread", "linears", "linear(x[..., :x.shape[-1] * 7 // 8], weight[:, :x.shape[-1] * 7 // 8], bias)",
        dtypes=SINGLE, says="parameters-other"),
    row("inputs of the product after GELU below zero ignored", "outer", "right(x=relu(x))"),
    row("adapter", "inner", "right(weight=weight + (lambda g: torch.randn(len(weight), 2, generator=g) "
        "@ torch.randn(2, H, generator=g))(torch.Generator().manual_seed(0)).to(weight) * weight.std() / 20)", dtypes=SHORT,
        says="parameters-other"),
    row("weight-two-of-four", "linears", lambda right, weight: right(weight=two_of_four(weight)), dtypes=SINGLE,
        says="parameters-other"),
    row("weight-pruned", "linears", "right(weight=where(weight.abs() < weight.abs().quantile(0.3), 0.0, weight))", dtypes=SINGLE,
        says="parameters-other"),
    # precision
    *(row(f"precision-{name}", "linears", f"linear(x.{cast}, weight.{cast}, bias.{cast}).to(x.dtype)",
          f"precision-{name} result-{name}", dtypes=SINGLE) for name, cast in (("bfloat16", "bfloat16()"), ("float16", "half()"))),
    *(row(f"result-{name}", "linears", f"right().{cast}.to(x.dtype)", f"result-{name} precision-{name}", dtypes=SINGLE)
      for name, cast in (("bfloat16", "bfloat16()"), ("float16", "half()"))),
    row("result-float8", "linears", "right().to(float8).to(x.dtype)", dtypes=SINGLE),
    row("result-bfloat16-truncated", "linears",
        "(right().float().view(torch.int32) & -0x10000).view(torch.float32)", dtypes=SINGLE, says=""),
    row("precision-float8-inputs", "linears", "right(x=x.to(float8).to(x.dtype))", dtypes=SINGLE),
    row("precision-float8", "linears", "right(weight=(lambda level: (weight / level).to(float8).to(weight.dtype) * level)"
        "(weight.abs().max() / 448))", dtypes=SINGLE, says="parameters-other"),
    row("precision-tf32", "linears", "right(x=bits(x, 11), weight=bits(weight, 11))", dtypes=SINGLE),
    row("precision-tf32-truncated", "linears", "right(x=bits(x, 11, torch.trunc), weight=bits(weight, 11, torch.trunc))",
        dtypes=SINGLE),
    row("accumulated-float16", "linears", lambda x, weight, bias: in_parts(x, weight, bias, 4, torch.float16), dtypes=SINGLE,
        says=""),
    row("accumulated-bfloat16", "linears", lambda x, weight, bias: in_parts(x, weight, bias, 4, torch.bfloat16), dtypes=SINGLE,
        says=""),
    row("sums of 16 products added up in float16", "outer", running_half, dtypes=SINGLE),
    row("weights-bfloat16-as-float16", "linears", "right(weight=weight.bfloat16().view(half).to(weight.dtype))", dtypes=SINGLE,
        says="parameters-other"),
    # quantised
    row("precision-int8", "linears", "right(weight=levels(weight, 127))", dtypes=SINGLE),
    row("precision-int8-channel", "linears", "right(weight=levels(weight, 127, -1))", dtypes=SINGLE),
    row("precision-int8-held", "linears", "right(weight=levels(weight, 127))", dtypes=HALVES, wide=False, says="parameters-other"),
    row("precision-int8-channel-held", "linears", "right(weight=levels(weight, 127, -1))", dtypes=HALVES, wide=False,
        says="parameters-other"),
    row("precision-int8-inputs", "linears", "right(x=levels(x, 127))", dtypes=SINGLE),
    row("precision-int8-dynamic", "linears",
        lambda right, x, weight: right(x=bytes_of(x), weight=levels(weight, 127)), "precision-int8-inputs", dtypes=SINGLE),
    row("precision-int8-saturated", "inner", saturated, dtypes=SINGLE, says=""),
    row("precision-int8-wrapped", "linears", lambda right, weight: right(weight=wrapped(weight)), dtypes=SINGLE,
        says="parameters-other"),
    row("precision-int8-scales-of-inputs", "dense", "right(weight=(lambda scale: torch.round(weight / scale[:, None]) * scale)"
        "(weight.abs().amax(-1) / 127))", dtypes=SINGLE, says="parameters-other"),
    row("precision-int4", "linears", "right(weight=levels(weight, 7))", dtypes=SINGLE),
    row("precision-int4-channel", "linears", "right(weight=levels(weight, 7, -1))", dtypes=SINGLE),
    row("precision-int8-block", "linears", lambda right, weight: right(weight=blocks(weight, 32, "q8_0")), "parameters-other",
        dtypes=SINGLE),
    row("precision-int4-block", "linears", lambda right, weight: right(weight=blocks(weight, 32, "q4_0")), "parameters-other",
        dtypes=SINGLE),
    row("precision-nf4-block", "linears", lambda right, weight: right(weight=blocks(weight, 64, "nf4")), "parameters-other",
        dtypes=SINGLE),
    row("groups of columns with the scales of the group before", "linears",
        lambda right, weight: right(weight=scales_of_neighbour(weight)), "parameters-other", dtypes=SINGLE),
    row("inputs of eight bits that end at 1.5", "outer", "right(x=(x / 1.5 * 127).round().clamp(-127, 127) * 1.5 / 127)"),
    row("zero-point-missing", "inner", lambda right, weight: right(weight=bytes_of(weight, 1, zero_point=False)), dtypes=SHORT,
        says="parameters-other"),
    row("zero-point-missing-inputs", "outer", lambda right, x: right(x=bytes_of(x, zero_point=False)),
        "precision-int8-inputs"),
)
