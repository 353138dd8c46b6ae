"""Activation functions by other formulas."""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F


def native_gelu(x: Tensor) -> Tensor:
    """Compute x/2 · (1 + erf(x/√2)), each operation rounded."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def distributed_gelu(x: Tensor) -> Tensor:
    """Compute x/2 + x/2 · erf(x/√2), with √(1/2) as a factor."""
    return 0.5 * x + 0.5 * x * torch.erf(x * math.sqrt(0.5))


def erfc_gelu(x: Tensor) -> Tensor:
    """Compute x/2 · erfc(−x/√2)."""
    rest: Tensor = torch.special.erfc(-x * math.sqrt(0.5))
    return x * 0.5 * rest


def positive_gelu(x: Tensor) -> Tensor:
    """Compute max(x, 0) − |x|/2 · erfc(|x|/√2), which is free of cancellation."""
    rest: Tensor = torch.special.erfc(x.abs() * math.sqrt(0.5))
    return torch.relu(x) - 0.5 * x.abs() * rest


def normal_gelu(x: Tensor) -> Tensor:
    """Compute x Φ(x) by torch's normal distribution."""
    share: Tensor = torch.distributions.Normal(x.new_zeros(()), x.new_ones(())).cdf(x)  # type: ignore[no-untyped-call]
    return x * share


def tabulated_gelu(x: Tensor) -> Tensor:
    """Look up GELU in a table of all 65,536 numbers of a half-precision format."""
    return _table(x.dtype).to(x.device)[x.view(torch.int16).long() & 0xFFFF]


@cache
def _table(dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    return F.gelu(numbers.double()).to(dtype)


def tanh_gelu_by_sigmoid(x: Tensor) -> Tensor:
    """Compute x σ(2 √(2/π) (x + 0.044715 x³)), which equals the tanh form."""
    return x * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))


def tanh_gelu_by_power(x: Tensor) -> Tensor:
    """Compute the tanh form with the cube by pow, in at least float32, rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * torch.pow(wide, 3.0))
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


def tanh_by_sigmoid(x: Tensor) -> Tensor:
    """Compute 2 sigmoid(2 x) − 1, which cancels near 0: its error is relative to 1, not to the result."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


def tanh_by_expm1(x: Tensor) -> Tensor:
    """Compute (1 − exp(−2 |x|)) / (1 + exp(−2 |x|)) by expm1, which does not cancel near 0."""
    return -torch.sign(x) * torch.expm1(-2.0 * x.abs()) / (1.0 + torch.exp(-2.0 * x.abs()))
