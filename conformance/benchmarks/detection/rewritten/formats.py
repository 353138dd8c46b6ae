"""Wrappers that set the format in which a function is computed."""

from collections.abc import Callable

import torch
from torch import Tensor


def at_least_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function computed in at least float32 and rounded once; only its floating-point tensors are widened."""

    def widened(x: object) -> object:
        if isinstance(x, Tensor) and x.is_floating_point():
            return x.to(torch.promote_types(x.dtype, torch.float32))
        return x

    def wide(*inputs: object) -> Tensor:
        kept = next(x.dtype for x in inputs if isinstance(x, Tensor))
        return function(*map(widened, inputs)).to(kept)

    return wide


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function computed in float64 and rounded once."""

    def wide(*inputs: Tensor) -> Tensor:
        return function(*(x.double() if x.is_floating_point() else x for x in inputs)).to(inputs[0].dtype)

    return wide
