"""Several steps in one call, as in fused kernels: intermediate results are neither rounded to storage nor exposed."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert, Intermediate, Output
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.rewritten.norms import cast_norm
from conformance.benchmarks.detection.rewritten.places import every
from conformance.benchmarks.detection.steps import LayerNorm


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _sum_and_norm(norm: LayerNorm, *parts: Tensor) -> Tensor:
    """Return the LayerNorm of the sum of the parts, computed in at least float32."""
    total = _widened(parts[0])
    for part in parts[1:]:
        total = total + part
    return cast_norm(norm, total).to(parts[0].dtype)


def sum_and_norm(model: Bert) -> None:
    """Normalize sums that are not rounded."""
    every(LayerNorm, lambda norm: override(norm, "forward", _of(norm)))(model)


def _of(norm: LayerNorm) -> Callable[..., Tensor]:
    return lambda *parts: _sum_and_norm(norm, *parts)


def bias_sum_and_norm(model: Bert) -> None:
    """Compute output projections without bias, which is added together with the residual."""

    def change(output: Output) -> None:
        dense, norm = output.dense, output.LayerNorm
        override(dense, "product", lambda x: x @ dense.weight.T)
        override(norm, "forward", lambda x, skip: _sum_and_norm(norm, x, dense.bias.expand_as(x), skip))

    every(Output, change)(model)


def product_and_gelu(model: Bert) -> None:
    """Apply the activation function to a product that is not rounded."""

    def change(intermediate: Intermediate) -> None:
        dense, function = intermediate.dense, intermediate.intermediate_act_fn
        override(dense, "product", lambda x: F.linear(_widened(x), _widened(dense.weight), _widened(dense.bias)))
        override(intermediate, "forward", lambda x: function(dense(x)).to(x.dtype))

    every(Intermediate, change)(model)
