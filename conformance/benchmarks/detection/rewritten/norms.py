"""LayerNorm of a module and what it normalises."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.steps import LayerNorm


def widened_norm(written: Callable[[LayerNorm, Tensor], Tensor]) -> Callable[[LayerNorm, Tensor], Tensor]:
    """The norm in at least float32, rounded once; its parameters are widened by what they meet."""
    return lambda norm, x: written(norm, x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def native_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """As the formula has it."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def one_pass_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """The variance as the mean square less the square of the mean."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + norm.eps) * norm.weight + norm.bias


def folded_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """x times a scale plus a shift."""
    scale = norm.weight * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + norm.eps)
    return x * scale + (norm.bias - x.mean(-1, keepdim=True) * scale)


def group_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """One group of all features."""
    return F.group_norm(x.reshape(-1, x.shape[-1]), 1, norm.weight, norm.bias, norm.eps).view_as(x)


def cast_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """torch's own, of everything in float32 (of float64 as it is)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return F.layer_norm(x.to(dtype), x.shape[-1:], norm.weight.to(dtype), norm.bias.to(dtype), norm.eps).to(x.dtype)
