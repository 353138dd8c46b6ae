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


def merged_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Mean and sum of squares of blocks of five features, merged (Chan, Golub and LeVeque 1983, equation 2.1)."""
    count, mean, squares = 0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for block in torch.split(x, 5, -1):
        own = block.mean(-1, keepdim=True)
        both, moved = count + block.shape[-1], own - mean
        squares = squares + (block - own).square().sum(-1, keepdim=True) + moved * moved * (count * block.shape[-1] / both)
        count, mean = both, mean + moved * (block.shape[-1] / both)
    return (x - mean) * torch.rsqrt(squares / count + norm.eps) * norm.weight + norm.bias


def pairwise_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Sums of halves, of halves of halves and so on."""
    centred = x - _pairwise(x) / x.shape[-1]
    return centred / torch.sqrt(_pairwise(centred * centred) / x.shape[-1] + norm.eps) * norm.weight + norm.bias


def _pairwise(x: Tensor) -> Tensor:
    if x.shape[-1] == 1:
        return x
    half = x.shape[-1] // 2
    return _pairwise(x[..., :half]) + _pairwise(x[..., half:])


def variance_mean_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Both statistics from one call of torch, γ before the division."""
    variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) * norm.weight / torch.sqrt(variance + norm.eps) + norm.bias


def batch_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """A batch norm in training of which every token is a channel."""
    rows = F.batch_norm(x.reshape(1, -1, x.shape[-1]), None, None, training=True, momentum=0.0, eps=norm.eps)
    return rows.view_as(x) * norm.weight + norm.bias


def product_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Both statistics as products with a column of ones, by a matrix unit."""
    ones = x.new_ones((x.shape[-1], 1))
    centred = x - x @ ones / x.shape[-1]
    return centred * torch.rsqrt((centred * centred) @ ones / x.shape[-1] + norm.eps) * norm.weight + norm.bias


def float64_statistics_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Mean and inverse root in float64, rounded to the format of x; the rest there."""
    wide = x.double()
    mean, variance = wide.mean(-1, keepdim=True), wide.var(-1, keepdim=True, unbiased=False)
    return (x - mean.to(x.dtype)) * torch.rsqrt(variance + norm.eps).to(x.dtype) * norm.weight + norm.bias


def features_first_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Over the first axis of (H, …), as a convolutional layout has it."""
    first = x.movedim(-1, 0)
    axes = (slice(None), *(None,) * (x.ndim - 1))
    centred = first - first.mean(0, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(0, keepdim=True) + norm.eps)
    return (normal * norm.weight[axes] + norm.bias[axes]).movedim(0, -1)


def rounded_before_scale_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Normalised in at least float32, rounded to the format, then scaled and shifted there."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.layer_norm(wide, x.shape[-1:], eps=norm.eps).to(x.dtype) * norm.weight + norm.bias
