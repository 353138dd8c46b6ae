"""Float32 products as a kernel makes them for tensor cores: two numbers of TF32 an operand, sums cut off instead of rounded.

After the published measurements of these units (Fasi, Higham, Mikaitis and Pranesh 2021; Khattak and Mikaitis 2025) and CUTLASS's
example 27; in the order of the least accurate one, four products at once and no bits beyond float32's but one.
"""

import math

import torch
from torch import Tensor

UNIT = 4
EXTRA_BITS = 1


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: (..., M, K), (..., K, N) -> (..., M, N), float32."""
    big_a, big_b = _tf32(a), _tf32(b)
    small_a, small_b = _tf32(a - big_a), _tf32(b - big_b)
    total = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    for start in range(0, a.shape[-1], UNIT):
        part = slice(start, start + UNIT)
        for left, right in ((small_a, big_b), (big_a, small_b), (big_a, big_b)):
            total = _added(total, left[..., part], right[..., part, :])
    return total


def attention(query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
    """softmax(q kᵀ / √d + mask) v: (B, h, S, d) each and a mask that broadcasts to (B, h, S, S), exponentials as powers of two."""
    scores = product(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5 + added
    shifted = (scores - scores.amax(-1, keepdim=True)) * math.log2(math.e)
    weights = torch.exp2(shifted)
    return product(weights, value) / weights.sum(-1, keepdim=True)


def _added(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b of a few products: each aligned to the largest and cut off, and so the sum."""
    terms = torch.cat([a.double()[..., :, :, None] * b.double()[..., None, :, :], total.double()[..., :, None, :]], -2)
    largest = terms.abs().amax(-2, keepdim=True)
    grid = torch.exp2(torch.floor(torch.log2(largest.clamp_min(torch.finfo(torch.float32).tiny))) - 23 - EXTRA_BITS)
    return _towards_zero((torch.trunc(terms / grid) * grid).sum(-2))


def _towards_zero(x: Tensor) -> Tensor:
    """Float64 to float32."""
    near = x.float()
    return torch.where(near.double().abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def _tf32(x: Tensor) -> Tensor:
    """To the nearest number of eleven significant bits."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
