"""Variants of norms and residual sums; the functions compute a norm of x from its weight, bias and eps."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import changed
from conformance.benchmarks.detection.variant import HALVES, Variant, variant, variants


def merged_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Merge mean and sum of squares of blocks of five features (Chan, Golub and LeVeque 1983, equation 2.1)."""
    count, mean, squares = 0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for block in torch.split(x, 5, -1):
        of_block = block.mean(-1, keepdim=True)
        both, moved = count + block.shape[-1], of_block - mean
        squares = squares + (block - of_block).square().sum(-1, keepdim=True) + moved * moved * (count * block.shape[-1] / both)
        count, mean = both, mean + moved * (block.shape[-1] / both)
    return (x - mean) * torch.rsqrt(squares / count + eps) * weight + bias


def pairwise_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute the sums by pairwise summation."""
    centred = x - _pairwise(x) / x.shape[-1]
    return centred / torch.sqrt(_pairwise(centred * centred) / x.shape[-1] + eps) * weight + bias


def _pairwise(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return _pairwise(x[..., :half]) + _pairwise(x[..., half:]) if half else x


def shifted_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute both statistics in one pass, of x less the first element of the row."""
    shift = x[..., :1]
    mean = (x - shift).mean(-1, keepdim=True)
    spread = (x - shift).square().mean(-1, keepdim=True) - mean * mean
    return (x - (shift + mean)) * torch.rsqrt(spread + eps) * weight + bias


def welford_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Update mean and sum of squares feature by feature (Welford 1962)."""
    mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for count, feature in enumerate(torch.split(x, 1, -1), 1):
        moved = feature - mean
        mean = mean + moved / count
        squares = squares + moved * (feature - mean)
    return (x - mean) * torch.rsqrt(squares / x.shape[-1] + eps) * weight + bias


def stored_statistics_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Store mean and inverse root in the format of x and compute all else in at least float32, as torch's group norm on CUDA."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, -1, unbiased=False, keepdim=True)
    mean, inverse = (statistic.to(x.dtype).to(wide.dtype) for statistic in (mean, torch.rsqrt(variance + eps)))
    return ((wide - mean) * inverse * weight.to(wide.dtype) + bias.to(wide.dtype)).to(x.dtype)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Use a batch norm in training mode in which every token is a channel."""
    rows = F.batch_norm(x.reshape(1, -1, x.shape[-1]), None, None, training=True, momentum=0.0, eps=eps)
    return rows.view_as(x) * weight + bias


def product_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute both statistics as products with a column of ones, as on a matrix unit."""
    ones = x.new_ones((x.shape[-1], 1))
    centred = x - x @ ones / x.shape[-1]
    return centred * torch.rsqrt((centred * centred) @ ones / x.shape[-1] + eps) * weight + bias


def float64_statistics_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute mean and inverse root in float64, round them to the format of x, and compute the rest in that format."""
    wide = x.double()
    mean, variance = wide.mean(-1, keepdim=True), wide.var(-1, keepdim=True, unbiased=False)
    return (x - mean.to(x.dtype)) * torch.rsqrt(variance + eps).to(x.dtype) * weight + bias


def features_first_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalize over the first axis of (H, …), as in a convolutional layout."""
    first = x.movedim(-1, 0)
    axes = (slice(None), *(None,) * (x.ndim - 1))
    centred = first - first.mean(0, keepdim=True)
    normal = centred * torch.rsqrt(centred.square().mean(0, keepdim=True) + eps)
    return (normal * weight[axes] + bias[axes]).movedim(0, -1)


NATIVE_NORM = "(lambda c: c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps) * weight + bias)(centred(x))"
ONE_FACTOR = "(lambda c: c * (torch.rsqrt((c * c).mean(-1, keepdim=True) + eps) * weight) + bias)(centred(x))"
ONE_PASS = (
    "(lambda m: (x - m) * torch.rsqrt((x * x).mean(-1, keepdim=True) - m * m + eps) * weight + bias)(x.mean(-1, keepdim=True))"
)
FOLDED = "(lambda s: x * s + (bias - x.mean(-1, keepdim=True) * s))(weight * torch.rsqrt(variance(x) + eps))"
GROUP_NORM = "F.group_norm(x.reshape(-1, x.shape[-1]), 1, weight, bias, eps).view_as(x)"
ROUNDED_FIRST = "layer_norm(widened(x), eps=eps).to(x.dtype) * weight + bias"
LAST_SUM = changed("embedded", "right(x=position + type + word)")

UNROUNDED = (
    changed("embedded", "right(word=widened(word))", wide=True),
    changed("residuals", "right(sublayer=widened(sublayer))", wide=True),
)

NORMS: Mapping[str, Variant] = {
    "norm, every operation rounded": variant("norms", NATIVE_NORM),
    "norm in float32": variant("norms", NATIVE_NORM, wide=True),
    "norm in one pass, float32": variant("norms", ONE_PASS, wide=True),
    "norm in one pass from the first feature, float32": variant("norms", shifted_norm, wide=True),
    "norm in one pass from the last feature, float32": variant(
        "norms", lambda x, weight, bias, eps: shifted_norm(x.flip(-1), weight.flip(-1), bias.flip(-1), eps).flip(-1), wide=True
    ),
    "norm of Welford, float32": variant("norms", welford_norm, wide=True),
    "norm with one factor, every operation rounded": variant("norms", ONE_FACTOR),
    "norm of merged blocks, float32": variant("norms", merged_norm, wide=True),
    "norm by pairwise sums, float32": variant("norms", pairwise_norm, wide=True),
    "norm folded into scale and shift": variant("norms", FOLDED, wide=True),
    "norm with γ before the division, float32": variant(
        "norms", "centred(x) * weight / torch.sqrt(variance(x) + eps) + bias", wide=True
    ),
    "norm by products with ones, float32": variant("norms", product_norm, wide=True),
    "norm with features first, float32": variant("norms", features_first_norm, wide=True),
    "norm with statistics of float64": variant("norms", float64_statistics_norm, wide=True),
    "norm in float32, rounded before the scale": variant("norms", ROUNDED_FIRST, dtypes=HALVES),
    "norm as a group norm": variant("norms", GROUP_NORM),
    "norm with stored statistics": variant("norms", stored_statistics_norm),
    "norm as a batch norm, float32": variant("norms", batch_norm, wide=True),
    "norm by torch, cast to float32": variant(
        "norms", CAST := "layer_norm(widened(x), widened(weight), widened(bias), eps).to(x.dtype)"
    ),
    "norm of an unrounded sum": variants(UNROUNDED),
    "bias, residual and norm in one": variants(
        (
            changed("dense", "x @ weight.T"),
            changed("outer", "x @ weight.T"),
            changed("attended", "right(sublayer=widened(sublayer) + p.dense.bias)", wide=True),
            changed("output", "right(sublayer=widened(sublayer) + p.outer.bias)", wide=True),
        ),
        hides=("output.dense", "output.dropout"),
    ),
    "embedding norm native, others not": variants((changed("norms", NATIVE_NORM, wide=True), changed("embedded", NATIVE_NORM))),
    "sums from the last to the first": variants((LAST_SUM, changed("residuals", "right(x=skip + sublayer)"))),
    "sums with the first part last": variants((changed("embedded", "right(x=word + (position + type))"),)),
}
