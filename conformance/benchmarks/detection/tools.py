"""The functions that the expressions of steps may call, and the evaluation of an expression."""

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from conformance.model.batch import IGNORED_LABEL


def hide(scores: Tensor, keep: Tensor) -> Tensor:
    """Return the scores, with the smallest number of the format where `keep` is False."""
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)


def lowest(x: Tensor) -> float:
    """Return the lowest number of the format of x."""
    return torch.finfo(x.dtype).min


def merge(x: Tensor) -> Tensor:
    """Concatenate the heads: (B, h, S, d) -> (B, S, H)."""
    return x.transpose(1, 2).flatten(2)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-12) -> Tensor:
    """Return (x − μ) / √(σ² + ε) · γ + β."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def centred(x: Tensor) -> Tensor:
    """Return x − μ."""
    return x - x.mean(-1, keepdim=True)


def variance(x: Tensor) -> Tensor:
    """Return σ², divided by n."""
    return x.var(-1, keepdim=True, unbiased=False)


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over unmasked tokens; the mask may have weights."""
    kept = mask[:, :, None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def read(table: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a table, clipped to the table."""
    return table[rows.clamp(0, len(table) - 1)]


def packed_left(x: Tensor, mask: Tensor) -> Tensor:
    """Return each row with its unmasked tokens at the beginning, and zeros after them."""
    order = mask.sort(dim=1, descending=True, stable=True).indices
    return x.gather(1, order[..., None].expand_as(x)) * mask.gather(1, order)[..., None]


def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, root: float) -> Tensor:
    """Return softmax(q kᵀ / root) v of split heads."""
    return torch.softmax(hide(q @ k.mT / root, keep), -1) @ v


def parted(x: Tensor, count: int) -> Tensor:
    """Split into another number of heads: (B, S, H) -> (B, count, S, H / count)."""
    return x.view(*x.shape[:-1], count, -1).transpose(1, 2)


def cross_entropy(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean cross entropy over labelled rows: (…, C) logits, (…) labels -> ()."""
    return F.cross_entropy(x.flatten(0, -2), y.flatten(), ignore_index=IGNORED_LABEL, reduction=reduction)


def nll(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean negative log-likelihood over labelled rows."""
    return F.nll_loss(x.flatten(0, -2), y.flatten(), ignore_index=IGNORED_LABEL, reduction=reduction)


def sinusoids(rows: int, width: int) -> Tensor:
    """Return PE[s, 2i] = sin(s / 10000^(2i/H)) and PE[s, 2i + 1] = cos(s / 10000^(2i/H)), in float64."""
    return waves(rows, width, lambda i: i / width, lambda i: i / width)


def waves(rows: int, width: int, sines: Callable[[Tensor], Tensor], cosines: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a (rows, width) table of alternating sines and cosines of position · 10000^(−e).

    `sines` and `cosines` return the exponents e from 0, 2, 4, ….
    """
    even, position = torch.arange(0, width, 2).double(), torch.arange(rows).double()[:, None]
    pairs = [(position * 10000.0 ** -sines(even)).sin(), (position * 10000.0 ** -cosines(even)).cos()]
    return torch.stack(pairs, -1).flatten(1)[:, :width]


def normal(shape: Iterable[int], seed: int, like: Tensor) -> Tensor:
    """Return normal deviates of a seed, in the format of `like`."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(like)


def levels(x: Tensor, largest: int, axis: int | None = None) -> Tensor:
    """Round to multiples of 1/`largest` of the largest magnitude, of the tensor or along an axis."""
    level = (x.abs().max() if axis is None else x.abs().amax(axis, keepdim=True)) / largest
    return torch.round(x / level) * level


def bits(x: Tensor, count: int, rounding: Callable[[Tensor], Tensor] = torch.round) -> Tensor:
    """Round to `count` significant bits, ties to even."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(rounding(mantissa * 2**count) / 2**count, exponent)


def widened(value: Any) -> Any:
    """Return a floating-point tensor in at least float32, and what is made of such tensors likewise; anything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(torch.promote_types(value.dtype, torch.float32))
    if isinstance(value, dict):
        return type(value)({name: widened(each) for name, each in value.items()})
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**widened(vars(value)))
    return [widened(each) for each in value] if isinstance(value, list) else value


TOOLS: Mapping[str, Any] = {
    "torch": torch,
    "F": F,
    "pi": math.pi,
    "inf": math.inf,
    "log": math.log,
    "sqrt": math.sqrt,
    "linear": F.linear,
    "gelu": F.gelu,
    "tanh_gelu": lambda x: F.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cat": torch.cat,
    "where": torch.where,
    "arange": torch.arange,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
    **{
        function.__name__: function
        for function in (hide, lowest, merge, layer_norm, centred, variance, mean, read, cross_entropy, nll, sinusoids, waves)
    },
    **{function.__name__: function for function in (packed_left, attention, parted)},
    **{function.__name__: function for function in (normal, levels, bits, widened)},
}


@cache
def _compiled(text: str) -> tuple[CodeType, frozenset[str]]:
    tree = ast.parse(text, mode="eval")
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return compile(tree, f"<{text}>", "eval"), names


def evaluated(expression: str | Callable[..., Any], scope: Callable[[str], Any]) -> Any:
    """Return the value of an expression, or of a function of the same names.

    Args:
        expression: the text of an expression, or a function whose parameters have the names of what they are given.
        scope: returns the value of a name, and raises KeyError for a name that it does not have.
    """
    if not isinstance(expression, str):
        return expression(**{name: scope(name) for name in inspect.signature(expression).parameters})
    code, names = _compiled(expression)
    values: dict[str, Any] = dict(TOOLS)
    for name in names:
        try:
            values[name] = scope(name)
        except KeyError:  # A function of `TOOLS`, or a variable that the expression binds.
            continue
    return eval(code, values)
