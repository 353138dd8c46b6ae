"""The linear product of a module and its input, and what is made of several of them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.steps import Linear


def split_product(linear: Linear, x: Tensor) -> Tensor:
    """The two halves of the features each by itself, then added: as over two devices."""
    half = x.shape[-1] // 2
    return x[..., :half] @ linear.weight[:, :half].T + x[..., half:] @ linear.weight[:, half:].T + linear.bias


def split_k_product(linear: Linear, x: Tensor) -> Tensor:
    """Eight parts of the features, each stored in the format, added in at least float32: a GPU's product of few rows."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    parts = zip(x.tensor_split(8, -1), linear.weight.tensor_split(8, -1), strict=True)
    total = linear.bias.to(dtype)
    for part, weight in parts:
        total = total + (part @ weight.T).to(dtype)
    return total.to(x.dtype)


def flat_product(linear: Linear, x: Tensor) -> Tensor:
    """All tokens in one matrix, the bias in the same call."""
    rows = torch.addmm(linear.bias, x.reshape(-1, x.shape[-1]), linear.weight.T)
    return rows.view(*x.shape[:-1], -1)


def transposed_product(linear: Linear, x: Tensor) -> Tensor:
    """A kernel of (in, out), as in JAX."""
    return torch.matmul(x, linear.weight.T.contiguous()) + linear.bias


def column_product(linear: Linear, x: Tensor) -> Tensor:
    """W xᵀ, features first."""
    return (linear.weight @ x.transpose(-1, -2) + linear.bias[:, None]).transpose(-1, -2)


def convolved_product(linear: Linear, x: Tensor) -> Tensor:
    """A convolution of width 1 over the tokens."""
    rows = x.reshape(1, -1, x.shape[-1]).transpose(1, 2)
    return F.conv1d(rows, linear.weight[:, :, None], linear.bias)[0].T.reshape(*x.shape[:-1], -1)


def chunked_product(linear: Linear, x: Tensor) -> Tensor:
    """Three tokens at a time."""
    return torch.cat([F.linear(part, linear.weight, linear.bias) for part in torch.split(x, 3, 1)], 1)


def by_head(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A product of two tensors with a head axis, a head at a time."""
    return lambda a, b: torch.stack([function(a[:, head], b[:, head]) for head in range(a.shape[1])], 1)


def fused_projections(model: Bert) -> None:
    """One product for query, key and value; each is its part."""
    for index in range(model.architecture.num_hidden_layers):
        own = model.layer(index).attention.self
        linears = (own.query, own.key, own.value)
        weight, bias = torch.cat([n.weight for n in linears]), torch.cat([n.bias for n in linears])
        for part, linear in enumerate(linears):
            override(linear, "product", lambda x, part=part, w=weight, b=bias: F.linear(x, w, b).chunk(3, -1)[part])


def projection_by_head(model: Bert) -> None:
    """Attention's output projection as a contraction over heads and their features."""
    heads = model.architecture.num_attention_heads

    def product(linear: Linear, x: Tensor) -> Tensor:
        kernel = linear.weight.T.reshape(heads, -1, len(linear.weight))
        split = x.view(*x.shape[:-1], heads, -1)
        return torch.einsum("bshd,hdo->bso", split, kernel) + linear.bias

    for index in range(model.architecture.num_hidden_layers):
        dense = model.layer(index).attention.output.dense
        override(dense, "product", lambda x, dense=dense: product(dense, x))
