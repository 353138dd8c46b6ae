"""Implementations of the linear product, from its module and its input, and changes that affect several products."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import Bert
from conformance.benchmarks.detection.planted.plant import override
from conformance.benchmarks.detection.steps import Linear


def split_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute each half of the features on its own, then add them, as on two devices."""
    half = x.shape[-1] // 2
    return x[..., :half] @ linear.weight[:, :half].T + x[..., half:] @ linear.weight[:, half:].T + linear.bias


def split_k_product(linear: Linear, x: Tensor) -> Tensor:
    """Store eight parts of the features in the format of x, then add them in at least float32, as a GPU does for few rows."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    parts = zip(x.tensor_split(8, -1), linear.weight.tensor_split(8, -1), strict=True)
    total = linear.bias.to(dtype)
    for part, weight in parts:
        total = total + (part @ weight.T).to(dtype)
    return total.to(x.dtype)


def flat_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute all tokens in one matrix product, which includes the bias."""
    rows = torch.addmm(linear.bias, x.reshape(-1, x.shape[-1]), linear.weight.T)
    return rows.view(*x.shape[:-1], -1)


def transposed_product(linear: Linear, x: Tensor) -> Tensor:
    """Use a kernel of (in, out), as in JAX."""
    return torch.matmul(x, linear.weight.T.contiguous()) + linear.bias


def column_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute W xᵀ, features first."""
    return (linear.weight @ x.transpose(-1, -2) + linear.bias[:, None]).transpose(-1, -2)


def convolved_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute a convolution of width 1 over the tokens; on CUDA without TF32, which cuDNN uses by default."""
    rows = x.reshape(1, -1, x.shape[-1]).transpose(1, 2)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return F.conv1d(rows, linear.weight[:, :, None], linear.bias)[0].T.reshape(*x.shape[:-1], -1)


def chunked_product(linear: Linear, x: Tensor) -> Tensor:
    """Process three tokens at a time."""
    return torch.cat([F.linear(part, linear.weight, linear.bias) for part in torch.split(x, 3, 1)], 1)


def augmented_product(linear: Linear, x: Tensor) -> Tensor:
    """Append the bias to the weight as a column, and a feature of ones to x."""
    ones = x.new_ones((*x.shape[:-1], 1))
    return torch.cat([x, ones], -1) @ torch.cat([linear.weight, linear.bias[:, None]], 1).T


def shuffled_product(linear: Linear, x: Tensor) -> Tensor:
    """Sum over the features of even index first."""
    order = torch.arange(x.shape[-1], device=x.device)
    order = torch.cat([order[::2], order[1::2]])
    return F.linear(x[..., order], linear.weight[:, order], linear.bias)


def outputs_in_parts(linear: Linear, x: Tensor) -> Tensor:
    """Compute a third of the outputs at a time, as on three devices."""
    parts = zip(linear.weight.tensor_split(3), linear.bias.tensor_split(3), strict=True)
    return torch.cat([F.linear(x, weight, bias) for weight, bias in parts], -1)


def padded_product(linear: Linear, x: Tensor) -> Tensor:
    """Pad features and outputs with zeros to multiples of 64."""
    outputs, inputs = linear.weight.shape
    weight = F.pad(linear.weight, (0, -inputs % 64, 0, -outputs % 64))
    return F.linear(F.pad(x, (0, -inputs % 64)), weight, F.pad(linear.bias, (0, -outputs % 64)))[..., :outputs]


def power_of_two_product(linear: Linear, x: Tensor) -> Tensor:
    """Divide the weight by 16 and multiply the input by 16, which is exact, as for a format of narrow range."""
    return F.linear(x * 16.0, linear.weight / 16.0, linear.bias)


def token_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute a matrix-vector product for each token."""
    rows = [torch.mv(linear.weight, row) + linear.bias for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).view(*x.shape[:-1], -1)


def summed_product(linear: Linear, x: Tensor) -> Tensor:
    """Compute elementwise products, then torch's sum, in at least float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return ((x.to(dtype).unsqueeze(-2) * linear.weight.to(dtype)).sum(-1) + linear.bias.to(dtype)).to(x.dtype)


def blocked_product(linear: Linear, x: Tensor) -> Tensor:
    """Add four features at a time to an accumulator in at least float32, which starts with the bias."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    total = linear.bias.to(dtype).expand(*x.shape[:-1], -1)
    for part, weight in zip(torch.split(x.to(dtype), 4, -1), torch.split(linear.weight.to(dtype), 4, -1), strict=True):
        total = total + part @ weight.T
    return total.to(x.dtype)


def three_part_product(linear: Linear, x: Tensor) -> Tensor:
    """Split each float32 operand into three bfloat16 numbers, and add the six largest of the nine products in float32."""
    (a, b, c), (d, e, f) = _parts(x), _parts(linear.weight.T)
    return c @ d + b @ e + a @ f + (b @ d + a @ e) + a @ d + linear.bias


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three bfloat16 numbers whose sum is x, as float32."""
    first = x.bfloat16().float()
    second = (x - first).bfloat16().float()
    return first, second, x - first - second


def by_head(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a product of two tensors with a head axis, computed for one head at a time."""
    return lambda a, b: torch.stack([function(a[:, head], b[:, head]) for head in range(a.shape[1])], 1)


def fused_projections(model: Bert) -> None:
    """Compute query, key and value as parts of one product."""
    for index in range(model.architecture.num_hidden_layers):
        own = model.layer(index).attention.self
        linears = (own.query, own.key, own.value)
        weight, bias = torch.cat([n.weight for n in linears]), torch.cat([n.bias for n in linears])
        for part, linear in enumerate(linears):
            override(linear, "product", lambda x, part=part, w=weight, b=bias: F.linear(x, w, b).chunk(3, -1)[part])


def projection_by_head(model: Bert) -> None:
    """Compute the attention output projection as a contraction over heads and their features."""
    heads = model.architecture.num_attention_heads

    def product(linear: Linear, x: Tensor) -> Tensor:
        kernel = linear.weight.T.reshape(heads, -1, len(linear.weight))
        split = x.view(*x.shape[:-1], heads, -1)
        return torch.einsum("bshd,hdo->bso", split, kernel) + linear.bias

    for index in range(model.architecture.num_hidden_layers):
        dense = model.layer(index).attention.output.dense
        override(dense, "product", lambda x, dense=dense: product(dense, x))


def scale_in_query(model: Bert) -> None:
    """Include 1/√d in the weight and bias of the query, not in the scores."""
    for index in range(model.architecture.num_hidden_layers):
        own = model.layer(index).attention.self
        scale = own.scores.root**-1
        weight, bias = own.query.weight * scale, own.query.bias * scale
        override(own.query, "product", lambda x, w=weight, b=bias: F.linear(x, w, b))
        override(own.scores, "product", lambda query, key: query @ key.transpose(-1, -2))


def transposed_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute (k qᵀ)ᵀ, scaled."""
    made: Tensor = (key @ query.transpose(-1, -2)).transpose(-1, -2) * query.shape[-1] ** -0.5
    return made


def summed_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute elementwise products and their sum, in at least float32."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    made: Tensor = (query.to(dtype).unsqueeze(-2) * key.to(dtype).unsqueeze(-3)).sum(-1) * query.shape[-1] ** -0.5
    return made.to(query.dtype)


def transposed_context(probs: Tensor, value: Tensor) -> Tensor:
    """Compute (vᵀ pᵀ)ᵀ."""
    return (value.transpose(-1, -2) @ probs.transpose(-1, -2)).transpose(-1, -2)


def context_in_blocks(probs: Tensor, value: Tensor) -> Tensor:
    """Add the products of three keys at a time, in at least float32."""
    dtype = torch.promote_types(probs.dtype, torch.float32)
    blocks = zip(torch.split(probs.to(dtype), 3, -1), torch.split(value.to(dtype), 3, -2), strict=True)
    total = torch.zeros_like(value, dtype=dtype)
    for part, rows in blocks:
        total = total + part @ rows
    return total.to(value.dtype)
