"""What several themes need: norms and linear layers with other numbers, and roundings to few levels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.blind.port import Operation, Port, prefix

DENSE = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
"""The linear steps of a layer, by the names of their parameters and of their activations."""

NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
"""The norms of a layer, likewise."""


def parameters(port: Port, name: str) -> tuple[Tensor, Tensor]:
    """The weight and bias of the module of that name."""
    return port.weights[f"{name}.weight"], port.weights[f"{name}.bias"]


def norm_with(port: Port, name: str, x: Tensor, eps: float) -> Tensor:
    """LayerNorm with another epsilon."""
    return F.layer_norm(x, x.shape[-1:], *parameters(port, name), eps)


def residual_with(name: str, eps: float) -> Operation:
    """The norm of a residual sum with another epsilon."""
    return lambda port, layer, x, skip, *_: norm_with(port, f"{prefix(layer)}.{name}", x + skip, eps)


def rounded(x: Tensor, levels: float, dim: int | None = None) -> Tensor:
    """Rounded to whole multiples of the largest magnitude, along `dim` or of all, over `levels`."""
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = largest.float() / levels
    return ((x.float() / scale).round() * scale).to(x.dtype)


def noise(like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers, the same at every call."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(like.device, like.dtype)


def kept(like: Tensor, rate: float, seed: int) -> Tensor:
    """A mask of zeros and ones, of which the fraction `rate` is zero, the same at every call."""
    drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn >= rate).to(like.device, like.dtype)
