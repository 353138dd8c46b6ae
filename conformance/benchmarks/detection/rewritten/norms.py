"""Implementations of LayerNorm, from its module and its input."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.steps import LayerNorm


def widened_norm(written: Callable[[LayerNorm, Tensor], Tensor]) -> Callable[[LayerNorm, Tensor], Tensor]:
    """Return the norm computed in at least float32 and rounded once; its parameters are widened by type promotion."""
    return lambda norm, x: written(norm, x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def native_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean, variance and result by the formula, in the format of x."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def one_pass_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute the variance as the mean of squares minus the square of the mean."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + norm.eps) * norm.weight + norm.bias


def folded_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute x times a scale plus a shift."""
    scale = norm.weight * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + norm.eps)
    return x * scale + (norm.bias - x.mean(-1, keepdim=True) * scale)


def group_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Use a group norm with one group of all features."""
    return F.group_norm(x.reshape(-1, x.shape[-1]), 1, norm.weight, norm.bias, norm.eps).view_as(x)


def stored_statistics_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Store mean and inverse root in the format of x and compute all else in at least float32, as torch's group norm on CUDA."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, -1, unbiased=False, keepdim=True)
    mean, inverse = (statistic.to(x.dtype).to(wide.dtype) for statistic in (mean, torch.rsqrt(variance + norm.eps)))
    return ((wide - mean) * inverse * norm.weight.to(wide.dtype) + norm.bias.to(wide.dtype)).to(x.dtype)


def cast_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Use torch's layer norm in float32, or in float64 for a float64 input."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return F.layer_norm(x.to(dtype), x.shape[-1:], norm.weight.to(dtype), norm.bias.to(dtype), norm.eps).to(x.dtype)


def merged_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and sum of squares of blocks of five features, and merge them (Chan, Golub and LeVeque 1983, equation 2.1)."""
    count, mean, squares = 0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for block in torch.split(x, 5, -1):
        own = block.mean(-1, keepdim=True)
        both, moved = count + block.shape[-1], own - mean
        squares = squares + (block - own).square().sum(-1, keepdim=True) + moved * moved * (count * block.shape[-1] / both)
        count, mean = both, mean + moved * (block.shape[-1] / both)
    return (x - mean) * torch.rsqrt(squares / count + norm.eps) * norm.weight + norm.bias


def pairwise_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute the sums by pairwise summation."""
    centred = x - _pairwise(x) / x.shape[-1]
    return centred / torch.sqrt(_pairwise(centred * centred) / x.shape[-1] + norm.eps) * norm.weight + norm.bias


def _pairwise(x: Tensor) -> Tensor:
    if x.shape[-1] == 1:
        return x
    half = x.shape[-1] // 2
    return _pairwise(x[..., :half]) + _pairwise(x[..., half:])


def variance_mean_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute both statistics in one call of torch, and multiply by γ before the division."""
    variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) * norm.weight / torch.sqrt(variance + norm.eps) + norm.bias


def batch_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Use a batch norm in training mode in which every token is a channel."""
    rows = F.batch_norm(x.reshape(1, -1, x.shape[-1]), None, None, training=True, momentum=0.0, eps=norm.eps)
    return rows.view_as(x) * norm.weight + norm.bias


def product_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute both statistics as products with a column of ones, as on a matrix unit."""
    ones = x.new_ones((x.shape[-1], 1))
    centred = x - x @ ones / x.shape[-1]
    return centred * torch.rsqrt((centred * centred) @ ones / x.shape[-1] + norm.eps) * norm.weight + norm.bias


def float64_statistics_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Compute mean and inverse root in float64, round them to the format of x, and compute the rest in that format."""
    wide = x.double()
    mean, variance = wide.mean(-1, keepdim=True), wide.var(-1, keepdim=True, unbiased=False)
    return (x - mean.to(x.dtype)) * torch.rsqrt(variance + norm.eps).to(x.dtype) * norm.weight + norm.bias


def features_first_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Normalize over the first axis of (H, …), as in a convolutional layout."""
    first = x.movedim(-1, 0)
    axes = (slice(None), *(None,) * (x.ndim - 1))
    centred = first - first.mean(0, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(0, keepdim=True) + norm.eps)
    return (normal * norm.weight[axes] + norm.bias[axes]).movedim(0, -1)


def rounded_before_scale_norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Normalize in at least float32, round to the format of x, then scale and shift in that format."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.layer_norm(wide, x.shape[-1:], eps=norm.eps).to(x.dtype) * norm.weight + norm.bias
