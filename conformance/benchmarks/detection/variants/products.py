"""Variants of the linear products and of the activation functions."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.benchmarks.detection.bert import changed
from conformance.benchmarks.detection.equations import Expression, Formula, Wide
from conformance.benchmarks.detection.variant import HALVES, Variant, variant, variants


def in_eight_parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Store eight parts of the features in the format of x, then add them in at least float32, as a GPU does for few rows."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    total = bias.to(dtype)
    for part, of_part in zip(x.tensor_split(8, -1), weight.tensor_split(8, -1), strict=True):
        total = total + (part @ of_part.T).to(dtype)
    return total.to(x.dtype)


def in_blocks_of_four(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Add four features at a time to an accumulator, which starts with the bias."""
    total = bias.expand(*x.shape[:-1], -1)
    for part, of_part in zip(torch.split(x, 4, -1), torch.split(weight, 4, -1), strict=True):
        total = total + part @ of_part.T
    return total


def three_parts(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Split each float32 operand into three bfloat16 numbers, and add the six largest of the nine products in float32."""
    (a, b, c), (d, e, f) = _parts(x), _parts(weight.T)
    return c @ d + b @ e + a @ f + (b @ d + a @ e) + a @ d + bias


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three bfloat16 numbers whose sum is x, as float32."""
    first = x.bfloat16().float()
    second = (x - first).bfloat16().float()
    return first, second, x - first - second


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute a convolution of width 1 over the tokens; on CUDA without TF32, which cuDNN uses by default."""
    rows = x.reshape(1, -1, x.shape[-1]).transpose(1, 2)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return F.conv1d(rows, weight[:, :, None], bias)[0].T.reshape(*x.shape[:-1], -1)


SHUFFLED = "linear(cat([x[..., ::2], x[..., 1::2]], -1), cat([weight[:, ::2], weight[:, 1::2]], 1), bias)"
AUGMENTED = "F.pad(x, (0, 1), value=1.0) @ cat([weight, bias[:, None]], 1).T"
TWO_HALVES = "x.chunk(2, -1)[0] @ weight.chunk(2, 1)[0].T + x.chunk(2, -1)[1] @ weight.chunk(2, 1)[1].T + bias"
SUMMED = "(x[..., None, :] * weight).sum(-1) + bias"
BY_TOKEN = "torch.stack([torch.mv(weight, t) + bias for t in x.reshape(-1, x.shape[-1])]).view(*x.shape[:-1], -1)"
PADDED = (
    "linear(F.pad(x, (0, -x.shape[-1] % 64)), F.pad(weight, (0, -weight.shape[1] % 64, 0, -len(weight) % 64)), "
    "F.pad(bias, (0, -len(bias) % 64)))[..., :len(bias)]"
)
POWERS, IN_OUT, COLUMNS = (
    "linear(x * 16, weight / 16, bias)",
    "x @ weight.T.contiguous() + bias",
    "(weight @ x.mT + bias[:, None]).mT",
)
THIRD = (
    "linear(x, cat([p.query.weight, p.key.weight, p.value.weight]), cat([p.query.bias, p.key.bias, p.value.bias])).chunk(3, -1)[{}]"
)

PRODUCTS: Mapping[str, Variant] = {
    "products summed backwards": variant("products", "linear(x.flip(-1), weight.flip(-1), bias)"),
    "products, every other feature first": variant("products", SHUFFLED),
    "bias as a call of its own": variant("products", "x @ weight.T + bias"),
    "bias as one more feature": variant("products", AUGMENTED),
    "products in two halves": variant("products", TWO_HALVES),
    "products in eight parts, stored and added": variant("products", in_eight_parts),
    "products in blocks of four features": variant("products", in_blocks_of_four, wide=True),
    "products as sums of elementwise products": variant("products", SUMMED, wide=True),
    "outputs in three parts": variant(
        "products", "cat([linear(x, w, b) for w, b in zip(weight.tensor_split(3), bias.tensor_split(3))], -1)"
    ),
    "products of all tokens in one matrix": variant(
        "products", "torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.T).view(*x.shape[:-1], -1)"
    ),
    "products of a matrix and a vector": variant("products", BY_TOKEN),
    "products padded with zeros": variant("products", PADDED),
    "products of operands scaled by powers of two": variant("products", POWERS),
    "products of three bfloat16 parts": variant("products", three_parts, dtypes=("float32",)),
    "kernels of (in, out)": variant("products", IN_OUT),
    "products with features first": variant("products", COLUMNS),
    "products as convolutions": variant("products", convolved),
    "products in float64": variant("products", "linear(x.double(), weight.double(), bias.double()).to(x.dtype)"),
    "feed-forward in chunks": variants(
        [changed(step, "cat([linear(t, weight, bias) for t in x.split(3, 1)], 1)") for step in ("inner", "outer")]
    ),
    "query, key and value in one product": variants(
        [changed(step, THIRD.format(number)) for number, step in enumerate(("query", "key", "value"))]
    ),
    "output projection by head": variant(
        "dense", "torch.einsum('bshd,hdo->bso', x.view(*x.shape[:-1], heads, -1), weight.T.reshape(heads, -1, H)) + bias"
    ),
}


@cache
def _gelu_of_every_number(dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    return F.gelu(numbers.double()).to(dtype)


def tabulated_gelu(x: Tensor) -> Tensor:
    """Look up GELU in a table of all 65,536 numbers of a half-precision format."""
    return _gelu_of_every_number(x.dtype).to(x.device)[x.view(torch.int16).long() & 0xFFFF]


ERFC = "x / 2 * torch.special.erfc(-x * sqrt(0.5))"
NORMAL = "x * torch.distributions.Normal(x.new_zeros(()), x.new_ones(())).cdf(x)"
NATIVE_GELU, FLOAT64_GELU = "x * 0.5 * (1.0 + erf(x / sqrt(2.0)))", "gelu(x.double()).to(x.dtype)"


def erf_form(*expressions: Expression) -> tuple[Expression, ...]:
    """Return the expressions where the architecture has the erf form, and what is right elsewhere."""
    return tuple(Wide(_erf_form(e.formula)) if isinstance(e, Wide) else _erf_form(e) for e in expressions)


def _erf_form(formula: Formula) -> Formula:
    return f"{formula} if act == 'gelu' else right()" if isinstance(formula, str) else formula


def tanh_form(expression: str) -> str:
    """Return the expression where the architecture has the tanh form, and what is right elsewhere."""
    return f"{expression} if act in ('gelu_new', 'gelu_pytorch_tanh') else right()"


FUNCTIONS: Mapping[str, Variant] = {
    "GELU, every operation rounded": variant("functions", *erf_form(NATIVE_GELU)),
    "GELU by erf of a product, float32": variant("functions", *erf_form("x / 2 + x / 2 * erf(x * sqrt(0.5))"), wide=True),
    "GELU by erfc": variant("functions", *erf_form(ERFC), wide=True),
    "GELU by erfc of a magnitude": variant(
        "functions", *erf_form("relu(x) - x.abs() / 2 * torch.special.erfc(x.abs() * sqrt(0.5))"), wide=True
    ),
    "GELU by ndtr": variant("functions", *erf_form("x * torch.special.ndtr(x)"), wide=True),
    "GELU by the normal distribution": variant("functions", *erf_form(NORMAL), wide=True),
    "GELU by a table of every number": variant(
        "functions", lambda x, act, right: tabulated_gelu(x) if act == "gelu" else right(), dtypes=HALVES
    ),
    "GELU of an unrounded product": variants(
        (changed("inner", "linear(widened(x), widened(weight), widened(bias))"), changed("activated", "right().to(dtype)")),
        hides=("intermediate.dense",),
    ),
    "GELU in float64": variant("functions", *erf_form(FLOAT64_GELU)),
    "tanh form by sigmoid, float32": variant(
        "functions", tanh_form("x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x * x * x))"), wide=True
    ),
    "tanh form by pow, float32": variant(
        "functions", tanh_form("x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * torch.pow(x, 3.0))))"), wide=True
    ),
    "tanh by expm1": variant(
        "pooled", "-torch.sign(x) * torch.expm1(-2 * x.abs()) / (1 + exp(-2 * x.abs()))", wide=True
    ),  # It does not cancel near 0.
    "tanh by expm1 alone, every operation rounded": variant(
        "pooled", "-torch.sign(x) * (lambda t: t / (t + 2))(torch.expm1(-2 * x.abs()))", dtypes=HALVES
    ),
    "tanh by sinh and cosh, every operation rounded": variant("pooled", "torch.sinh(x) / torch.cosh(x)"),
    "tanh by sigmoid, in float32": variant("pooled", "2 * sigmoid(2 * x) - 1", wide=True, dtypes=HALVES),
}
