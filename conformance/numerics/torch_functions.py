"""Torch's equivalents of NumPy's functions, on tensors, with NumPy's arguments.

A function that is missing here, or that returns `NotImplemented` for some arguments, is computed by NumPy (`torch_array`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import special

Function = Callable[..., Any]
Axes = int | tuple[int, ...] | None

DTYPES: Mapping[Any, torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
NAMES = {kind: dtype for dtype, kind in DTYPES.items()}

UFUNCS: Mapping[Any, Function] = {
    np.add: torch.add,
    np.subtract: torch.subtract,
    np.multiply: torch.multiply,
    np.true_divide: torch.true_divide,
    np.floor_divide: torch.floor_divide,
    np.remainder: torch.remainder,
    np.power: torch.pow,
    np.negative: torch.negative,
    np.positive: torch.positive,
    np.absolute: torch.abs,
    np.sign: torch.sign,
    np.sqrt: torch.sqrt,
    np.square: torch.square,
    np.exp: torch.exp,
    np.exp2: torch.exp2,
    np.expm1: torch.expm1,
    np.log: torch.log,
    np.log1p: torch.log1p,
    np.log2: torch.log2,
    np.sin: torch.sin,
    np.cos: torch.cos,
    np.tanh: torch.tanh,
    np.cosh: torch.cosh,
    np.hypot: torch.hypot,
    np.floor: torch.floor,
    np.ceil: torch.ceil,
    np.trunc: torch.trunc,
    np.rint: torch.round,  # Both round ties to even.
    np.maximum: torch.maximum,
    np.minimum: torch.minimum,
    np.fmax: torch.fmax,
    np.fmin: torch.fmin,
    np.copysign: torch.copysign,
    np.logaddexp: torch.logaddexp,
    np.isfinite: torch.isfinite,
    np.isnan: torch.isnan,
    np.isinf: torch.isinf,
    np.signbit: torch.signbit,
    np.equal: torch.eq,
    np.not_equal: torch.ne,
    np.less: torch.lt,
    np.less_equal: torch.le,
    np.greater: torch.gt,
    np.greater_equal: torch.ge,
    np.logical_and: torch.logical_and,
    np.logical_or: torch.logical_or,
    np.logical_not: torch.logical_not,
    np.bitwise_and: torch.bitwise_and,
    np.bitwise_or: torch.bitwise_or,
    np.bitwise_xor: torch.bitwise_xor,
    np.invert: torch.bitwise_not,
    np.left_shift: torch.bitwise_left_shift,
    np.right_shift: torch.bitwise_right_shift,
    special.erf: torch.special.erf,
    special.erfc: torch.special.erfc,
    special.expit: torch.special.expit,
    np.matmul: lambda x, y, **keywords: _product(x, y, **keywords),
}
"""Universal functions of operands of one data type."""

BOOLEAN = frozenset(
    {np.isfinite, np.isnan, np.isinf, np.signbit, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}
    | {np.logical_and, np.logical_or, np.logical_not}
)
"""Universal functions whose results are truth values."""

OF_REALS = frozenset(
    {np.true_divide, np.sqrt, np.exp, np.exp2, np.expm1, np.log, np.log1p, np.log2, np.sin, np.cos, np.tanh, np.cosh, np.hypot}
    | {np.logaddexp, np.copysign, special.erf, special.erfc, special.expit}
)
"""Universal functions whose results are real numbers for integers, too."""


def _product(x: torch.Tensor, y: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """Return x @ y; in float64 and rounded if the device may compute float32 products in TensorFloat-32."""
    if x.dtype == torch.float32 and x.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        found = torch.matmul(x.double(), y.double()).float()
        return keywords["out"].copy_(found) if keywords else found
    return torch.matmul(x, y, **keywords)


def moved(value: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor or an array as a tensor on a device; the axes along which an array is broadcast are expanded there."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    array = np.asarray(value)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return torch.from_numpy(np.array(array[once])).to(device).expand(array.shape)


def _unique(x: torch.Tensor, **keywords: Any) -> Any:
    """Return the distinct elements in order, and the inverse and the counts if they are asked for."""
    if keywords.keys() - {"return_inverse", "return_counts"}:
        return NotImplemented
    return torch.unique(x, sorted=True, **keywords)


def _axes(x: torch.Tensor, axis: Axes) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def _selected(x: torch.Tensor, where: Any, otherwise: float) -> torch.Tensor:
    return x if where is True else torch.where(where, x, torch.full((), otherwise, dtype=x.dtype, device=x.device))


def _sum(
    x: torch.Tensor, axis: Axes = None, dtype: Any = None, keepdims: bool = False, initial: float = 0.0, where: Any = True
) -> torch.Tensor:
    if axis == ():
        return _selected(x, where, 0)
    found = torch.sum(
        _selected(x, where, 0), _axes(x, axis), keepdim=keepdims, dtype=None if dtype is None else DTYPES[np.dtype(dtype)]
    )
    return found + initial if initial else found


def _mean(x: torch.Tensor, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> torch.Tensor:
    real = x if x.is_floating_point() else x.double()
    return torch.mean(real, _axes(x, axis), keepdim=keepdims, dtype=None if dtype is None else DTYPES[np.dtype(dtype)])


def _extreme(largest: bool) -> Function:
    reduce, pairwise = (torch.amax, torch.maximum) if largest else (torch.amin, torch.minimum)
    neutral = float("-inf") if largest else float("inf")

    def found(x: torch.Tensor, axis: Axes = None, keepdims: bool = False, initial: float | None = None, where: Any = True) -> Any:
        if (initial is not None or where is not True) and not x.is_floating_point():
            return NotImplemented
        if where is not True:
            x = _selected(x, where, neutral)
        if initial is None:
            return reduce(x, _axes(x, axis), keepdim=keepdims)
        start = torch.full((), initial, dtype=x.dtype, device=x.device)
        if not x.numel():
            return NotImplemented if axis is not None else start
        return pairwise(reduce(x, _axes(x, axis), keepdim=keepdims), start)

    return found


def _any(x: torch.Tensor, axis: Axes = None, keepdims: bool = False, where: Any = True) -> torch.Tensor:
    x = _selected(x.bool(), where, False)
    return torch.any(x, _axes(x, axis), keepdim=keepdims) if x.ndim else x


def _all(x: torch.Tensor, axis: Axes = None, keepdims: bool = False, where: Any = True) -> torch.Tensor:
    x = _selected(x.bool(), where, True)
    return torch.all(x, _axes(x, axis), keepdim=keepdims) if x.ndim else x


def _cumsum(x: torch.Tensor, axis: int | None = None, dtype: Any = None) -> Any:
    kind = None if dtype is None else DTYPES[np.dtype(dtype)]
    return torch.cumsum(x.reshape(-1), 0, dtype=kind) if axis is None else torch.cumsum(x, axis, dtype=kind)


def _argument(reduce: Function) -> Function:
    # Of equal elements NumPy returns the first, as torch does on the CPU; on an accelerator it may be any of them.
    def found(x: torch.Tensor, axis: int | None = None) -> Any:
        numbers = x.byte() if x.dtype == torch.bool else x
        return reduce(numbers.reshape(-1), 0) if axis is None else reduce(numbers, axis)

    return found


def _where(condition: torch.Tensor, *choices: torch.Tensor) -> Any:
    return torch.where(condition, *choices) if choices else NotImplemented


def _clip(x: torch.Tensor, low: Any = None, high: Any = None, **keywords: Any) -> Any:
    low, high = keywords.pop("min", low), keywords.pop("max", high)
    return NotImplemented if keywords else torch.clamp(x, low, high)


def _concatenate(arrays: Sequence[torch.Tensor], axis: int | None = 0) -> Any:
    return NotImplemented if axis is None else torch.cat(list(arrays), axis)


def _einsum(subscripts: Any, *operands: torch.Tensor, **keywords: Any) -> Any:
    return NotImplemented if keywords or not isinstance(subscripts, str) else torch.einsum(subscripts, *operands)


def _count_nonzero(x: torch.Tensor, axis: Axes = None) -> torch.Tensor:
    return torch.count_nonzero(x, axis)


def _bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    return torch.bincount(x.long(), weights, minlength)


def _take_along_axis(x: torch.Tensor, indices: torch.Tensor, axis: int = -1) -> torch.Tensor:
    return torch.take_along_dim(x, indices, axis)


def _like(fill: float | None) -> Function:
    def created(x: torch.Tensor, dtype: Any = None, shape: Any = None) -> torch.Tensor:
        kind, size = x.dtype if dtype is None else DTYPES[np.dtype(dtype)], x.shape if shape is None else shape
        if fill is None:
            return torch.empty(size, dtype=kind, device=x.device)
        return torch.full(tuple(size), fill, dtype=kind, device=x.device)

    return created


def _full_like(x: torch.Tensor, value: Any, dtype: Any = None) -> Any:
    if not isinstance(value, float | int):
        return NotImplemented
    return torch.full_like(x, value, dtype=None if dtype is None else DTYPES[np.dtype(dtype)])


def _vdot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.dot(x.reshape(-1), y.reshape(-1))


def _norm(x: torch.Tensor, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:  # NumPy's name.
    if ord is not None:
        return NotImplemented
    return torch.linalg.vector_norm(x, 2, axis, keepdim=keepdims)


def _copyto(target: torch.Tensor, source: Any, where: Any = True) -> None:
    target.copy_(source if where is True else torch.where(where, source, target))


METHODS: Mapping[str, Function] = {
    "sum": _sum,
    "mean": _mean,
    "max": _extreme(largest=True),
    "min": _extreme(largest=False),
    "std": lambda x, axis=None, keepdims=False: torch.std(x, _axes(x, axis), correction=0, keepdim=keepdims),
    "var": lambda x, axis=None, keepdims=False: torch.var(x, _axes(x, axis), correction=0, keepdim=keepdims),
    "any": _any,
    "all": _all,
    "cumsum": _cumsum,
    "argmax": _argument(torch.argmax),
    "argmin": _argument(torch.argmin),
    "clip": _clip,
}
"""Methods of an array, which are functions as well."""

REDUCTIONS: Mapping[Any, Function] = {
    np.add: lambda x, axis=0, **keywords: _sum(x, axis, **keywords),
    np.maximum: lambda x, axis=0, **keywords: METHODS["max"](x, axis, **keywords),
    np.minimum: lambda x, axis=0, **keywords: METHODS["min"](x, axis, **keywords),
}
"""The method `reduce` of universal functions."""


def _add_at(target: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    target.index_put_((index,), values.to(target.dtype), accumulate=True)


AT: Mapping[Any, Function] = {np.add: _add_at}
"""The method `at` of universal functions, which changes its first argument."""


def _refused(function: Any) -> Function:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError(f"numpy.{function.__name__} changes an array in place, and is not implemented for tensors")

    return refuse


IN_PLACE: Mapping[Any, Function] = {
    np.copyto: _copyto,
    np.put_along_axis: lambda target, indices, values, axis: target.scatter_(axis, indices, values.expand(indices.shape)),
    **{function: _refused(function) for function in (np.fill_diagonal, np.place, np.put, np.putmask)},
}
"""Functions that change their first argument."""

FUNCTIONS: Mapping[Any, Function] = {
    **{getattr(np, name): function for name, function in METHODS.items()},
    np.amax: METHODS["max"],
    np.amin: METHODS["min"],
    np.where: _where,
    np.broadcast_to: torch.broadcast_to,
    np.concatenate: _concatenate,
    np.stack: lambda arrays, axis=0: torch.stack(list(arrays), axis),
    np.moveaxis: torch.movedim,
    np.take_along_axis: _take_along_axis,
    np.count_nonzero: _count_nonzero,
    np.bincount: _bincount,
    np.einsum: _einsum,
    np.zeros_like: _like(0.0),
    np.ones_like: _like(1.0),
    np.empty_like: _like(None),
    np.full_like: _full_like,
    np.ascontiguousarray: torch.Tensor.contiguous,
    np.array_equal: lambda x, y: x.shape == y.shape and bool(torch.eq(x, y).all()),
    np.nan_to_num: lambda x, nan=0.0, posinf=None, neginf=None: torch.nan_to_num(x, nan, posinf, neginf),
    np.roll: lambda x, shift, axis=None: torch.roll(x, shift, axis),
    np.unique: _unique,
    np.ndim: lambda x: x.ndim,
    np.dot: lambda x, y: torch.dot(x, y) if x.ndim == y.ndim == 1 else NotImplemented,
    np.vdot: _vdot,
    np.linalg.norm: _norm,
}
"""Functions that are not universal."""


def _created(fill: float) -> Function:
    def created(shape: Any, dtype: Any = np.float64, *, device: torch.device) -> torch.Tensor:
        return torch.full((shape,) if isinstance(shape, int) else tuple(shape), fill, dtype=DTYPES[np.dtype(dtype)], device=device)

    return created


def _full(shape: Any, value: Any, dtype: Any = None, *, device: torch.device) -> torch.Tensor:
    found: torch.Tensor = _created(value)(shape, np.asarray(value).dtype if dtype is None else dtype, device=device)
    return found


def _empty(shape: Any, dtype: Any = np.float64, *, device: torch.device) -> torch.Tensor:
    return torch.empty((shape,) if isinstance(shape, int) else tuple(shape), dtype=DTYPES[np.dtype(dtype)], device=device)


CREATORS: Mapping[Any, Function] = {
    np.asarray: lambda value, dtype=None, *, device: moved(value, device),
    np.zeros: _created(0.0),
    np.ones: _created(1.0),
    np.full: _full,
    np.empty: _empty,
}
"""Functions that create an array on the device of their argument `like`."""
