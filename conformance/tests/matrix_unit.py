"""Float32 matrix products as a kernel for tensor cores computes them: each operand split into two TF32 numbers, sums truncated
instead of rounded.

The model follows published measurements of these units (Fasi, Higham, Mikaitis and Pranesh 2021; Khattak and Mikaitis 2025)
and CUTLASS's example 27. It takes the least accurate unit: four products are added at once, with one bit beyond float32's."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

UNIT = 4
EXTRA_BITS = 1


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in float32: (..., M, K), (..., K, N) -> (..., M, N)."""
    big_a, big_b = _tf32(a), _tf32(b)
    small_a, small_b = _tf32(a - big_a), _tf32(b - big_b)
    return _accumulated(((small_a, big_b), (big_a, small_b), (big_a, big_b)))


def tf32_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b with both operands rounded to TF32, in one pass: (..., M, K), (..., K, N) -> (..., M, N)."""
    return _accumulated(((_tf32(a), _tf32(b)),))


def attention(query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
    """Compute softmax(q kᵀ / √d + mask) v with exponentials as powers of two.

    Args:
        q, k, v: (B, h, S, d) each.
        mask: broadcasts to (B, h, S, S)."""
    scores = product(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5 + added
    shifted = (scores - scores.amax(-1, keepdim=True)) * math.log2(math.e)
    weights = torch.exp2(shifted)
    return product(weights, value) / weights.sum(-1, keepdim=True)


def _accumulated(passes: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of the products of all passes, a few terms of each pass at a time."""
    a, b = passes[0]
    total = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    for start in range(0, a.shape[-1], UNIT):
        part = slice(start, start + UNIT)
        for left, right in passes:
            total = _added(total, left[..., part], right[..., part, :])
    return total


def _added(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return total + a @ b for a few products: every term is aligned to the largest and truncated, and so is the sum."""
    terms = torch.cat([a.double()[..., :, :, None] * b.double()[..., None, :, :], total.double()[..., :, None, :]], -2)
    largest = terms.abs().amax(-2, keepdim=True)
    grid = torch.exp2(torch.floor(torch.log2(largest.clamp_min(torch.finfo(torch.float32).tiny))) - 23 - EXTRA_BITS)
    return _towards_zero((torch.trunc(terms / grid) * grid).sum(-2))


def _towards_zero(x: Tensor) -> Tensor:
    """Truncate float64 to float32."""
    near = x.float()
    return torch.where(near.double().abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def _tf32(x: Tensor) -> Tensor:
    """Round to the nearest number of eleven significant bits."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
