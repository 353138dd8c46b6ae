"""Activation functions in other words."""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F


def native_gelu(x: Tensor) -> Tensor:
    """As the formula has it."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def distributed_gelu(x: Tensor) -> Tensor:
    """x/2 + x/2 · erf(x/√2), the constant as a factor."""
    return 0.5 * x + 0.5 * x * torch.erf(x * math.sqrt(0.5))


def erfc_gelu(x: Tensor) -> Tensor:
    """By the complement of erf."""
    rest: Tensor = torch.special.erfc(-x * math.sqrt(0.5))
    return x * 0.5 * rest


def positive_gelu(x: Tensor) -> Tensor:
    """max(x, 0) − |x|/2 · erfc(|x|/√2), which cancels nowhere."""
    rest: Tensor = torch.special.erfc(x.abs() * math.sqrt(0.5))
    return torch.relu(x) - 0.5 * x.abs() * rest


def normal_gelu(x: Tensor) -> Tensor:
    """By torch's normal distribution."""
    share: Tensor = torch.distributions.Normal(x.new_zeros(()), x.new_ones(())).cdf(x)  # type: ignore[no-untyped-call]
    return x * share


def tabulated_gelu(x: Tensor) -> Tensor:
    """Looked up among all 65,536 numbers of a half format."""
    return _table(x.dtype)[x.view(torch.int16).long() & 0xFFFF]


@cache
def _table(dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    return F.gelu(numbers.double()).to(dtype)


def tanh_gelu_by_sigmoid(x: Tensor) -> Tensor:
    """x σ(2 √(2/π) (x + 0.044715 x³)), the same function."""
    return x * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))


def tanh_gelu_by_power(x: Tensor) -> Tensor:
    """The cube by pow, everything in at least float32, rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * torch.pow(wide, 3.0))
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


def tanh_by_sigmoid(x: Tensor) -> Tensor:
    """2 sigmoid(2 x) − 1, which cancels near 0: its error is a rounding of 1, and a tanh's one of itself."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


def tanh_by_expm1(x: Tensor) -> Tensor:
    """(1 − exp(−2 |x|)) / (1 + exp(−2 |x|)), which does not."""
    return -torch.sign(x) * torch.expm1(-2.0 * x.abs()) / (1.0 + torch.exp(-2.0 * x.abs()))
