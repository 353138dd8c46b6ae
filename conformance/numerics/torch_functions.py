"""Torch's equivalents of NumPy's functions, on tensors, with NumPy's arguments.

A function that is missing here, or that raises `TypeError` or `NotImplementedError` for some arguments, is computed by NumPy
(`torch_array`).
"""

from collections.abc import Callable, Mapping
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

_SAME_NAME = (
    "add subtract multiply true_divide floor_divide remainder negative sqrt square exp exp2 expm1 log log1p log2 "
    "sin cos tanh cosh hypot floor ceil trunc maximum minimum fmax fmin copysign logaddexp isfinite isnan isinf "
    "signbit logical_and logical_or logical_not bitwise_and bitwise_or bitwise_xor"
)
UFUNCS: Mapping[Any, Function] = {
    **{getattr(np, name): getattr(torch, name) for name in _SAME_NAME.split()},
    np.power: torch.pow,
    np.positive: torch.clone,
    np.absolute: torch.abs,
    np.sign: lambda x: torch.where(x.isnan(), x, x.sign()),
    np.rint: torch.round,  # Both round ties to even.
    np.equal: torch.eq,
    np.not_equal: torch.ne,
    np.less: torch.lt,
    np.less_equal: torch.le,
    np.greater: torch.gt,
    np.greater_equal: torch.ge,
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
    if x.dtype == torch.float32 and x.is_cuda and _rounds_operands():
        found = torch.matmul(x.double(), y.double()).float()
        return keywords["out"].copy_(found) if keywords else found
    return torch.matmul(x, y, **keywords)


def _rounds_operands() -> bool:
    """Return whether torch may round the operands of float32 products; it refuses to say so after some settings."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return True


def moved(value: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor or an array as a tensor on a device; the axes along which an array is broadcast are expanded there."""
    value = getattr(value, "tensor", value)  # of a `TorchArray`
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    array = np.asarray(value)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return torch.from_numpy(np.array(array[once])).to(device).expand(array.shape)


def _kind(dtype: Any) -> torch.dtype | None:
    return None if dtype is None else DTYPES[np.dtype(dtype)]


def _axes(x: torch.Tensor, axis: Axes) -> tuple[int, ...]:
    """Return the axes of a reduction.

    Raises:
        NotImplementedError: the tuple of axes is empty: NumPy then reduces none, torch all.
    """
    if axis == ():
        raise NotImplementedError
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def _selected(x: torch.Tensor, where: Any, otherwise: float) -> torch.Tensor:
    """Return x with a number in place of the elements that a reduction leaves out."""
    return x if where is True else torch.where(where, x, torch.full((), otherwise, dtype=x.dtype, device=x.device))


def _sum(
    x: torch.Tensor, axis: Axes = None, dtype: Any = None, keepdims: bool = False, initial: float = 0.0, where: Any = True
) -> torch.Tensor:
    found = torch.sum(_selected(x, where, 0), _axes(x, axis), keepdim=keepdims, dtype=_kind(dtype))
    return found + initial if initial else found


def _reals(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_floating_point() else x.double()


def _mean(x: torch.Tensor, axis: Axes = None, dtype: Any = None, keepdims: bool = False) -> torch.Tensor:
    return torch.mean(_reals(x), _axes(x, axis), keepdim=keepdims, dtype=_kind(dtype))


def _deviation(reduce: Function) -> Function:
    """Return the variance, or the standard deviation, of n elements, with the divisor n."""

    def found(x: torch.Tensor, axis: Axes = None, keepdims: bool = False) -> Any:
        return reduce(_reals(x), _axes(x, axis), correction=0, keepdim=keepdims)

    return found


def _extreme(largest: bool) -> Function:
    """Return the maximum, or the minimum; `initial` and `where` are left to NumPy for integers and arrays without an element."""
    reduce, pairwise = (torch.amax, torch.maximum) if largest else (torch.amin, torch.minimum)
    neutral = float("-inf") if largest else float("inf")

    def found(x: torch.Tensor, axis: Axes = None, keepdims: bool = False, initial: float | None = None, where: Any = True) -> Any:
        if (initial is not None or where is not True) and not (x.is_floating_point() and x.numel()):
            raise NotImplementedError
        extreme = reduce(_selected(x, where, neutral), _axes(x, axis), keepdim=keepdims)
        return extreme if initial is None else pairwise(extreme, torch.full((), initial, dtype=x.dtype, device=x.device))

    return found


def _truth(reduce: Function, neutral: bool) -> Function:
    """Return whether any element, or every element, is not zero; `neutral` stands for those that are left out."""

    def found(x: torch.Tensor, axis: Axes = None, keepdims: bool = False, where: Any = True) -> Any:
        x = _selected(x.bool(), where, neutral)
        return reduce(x, _axes(x, axis), keepdim=keepdims) if x.ndim else x.clone()

    return found


def _cumsum(x: torch.Tensor, axis: int | None = None, dtype: Any = None) -> Any:
    return torch.cumsum(x.reshape(-1), 0, dtype=_kind(dtype)) if axis is None else torch.cumsum(x, axis, dtype=_kind(dtype))


def _argument(reduce: Function) -> Function:
    """Return the index of an extreme element: the first of equal ones, in NumPy and in torch."""

    def found(x: torch.Tensor, axis: int | None = None) -> Any:
        numbers = x.byte() if x.dtype == torch.bool else x
        return reduce(numbers.reshape(-1), 0) if axis is None else reduce(numbers, axis)

    return found


def _unique(x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """Return the distinct elements in order, and the inverse and the counts if they are asked for."""
    if x.isnan().any():  # which NumPy counts as equal
        raise NotImplementedError
    return torch.unique(x, sorted=True, return_inverse=return_inverse, return_counts=return_counts)


def _norm(x: torch.Tensor, *, axis: Axes = None, keepdims: bool = False) -> Any:
    return torch.linalg.vector_norm(_reals(x), 2, axis, keepdim=keepdims)


def _dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.ndim == y.ndim == 1:
        raise NotImplementedError
    return torch.dot(x, y)


def _like(fill: float) -> Function:
    """Return the function that creates an array of one number, with the shape, and by default the data type, of another."""

    def created(x: torch.Tensor, dtype: Any = None) -> torch.Tensor:
        return torch.full(x.shape, fill, dtype=x.dtype if dtype is None else _kind(dtype), device=x.device)

    return created


def _copyto(target: torch.Tensor, source: Any, where: Any = True) -> None:
    target.copy_(source if where is True else torch.where(where, source, target))


def _put_along_axis(target: torch.Tensor, indices: torch.Tensor, values: Any, axis: int) -> None:
    shape = list(target.shape)
    shape[axis] = indices.shape[axis]
    numbers = torch.as_tensor(values, dtype=target.dtype, device=target.device)
    target.scatter_(axis, indices.long().expand(shape), numbers.expand(shape))


METHODS: Mapping[str, Function] = {
    "sum": _sum,
    "mean": _mean,
    "max": _extreme(largest=True),
    "min": _extreme(largest=False),
    "std": _deviation(torch.std),
    "var": _deviation(torch.var),
    "any": _truth(torch.any, neutral=False),
    "all": _truth(torch.all, neutral=True),
    "cumsum": _cumsum,
    "argmax": _argument(torch.argmax),
    "argmin": _argument(torch.argmin),
    "clip": lambda x, min=None, max=None: torch.clamp(x, min, max),
}
"""Methods of an array, which are functions as well."""

REDUCTIONS: Mapping[Any, Any] = {np.add: np.sum, np.maximum: np.max, np.minimum: np.min}
"""The functions that are the method `reduce` of universal functions, along the first axis by default."""

AT: Mapping[Any, Function] = {
    np.add: lambda target, index, values: target.index_put_(index, values.to(target.dtype), accumulate=True),
}
"""The method `at` of universal functions, which changes its first argument."""

IN_PLACE: Mapping[Any, Function] = {np.copyto: _copyto, np.put_along_axis: _put_along_axis}
"""Functions that change their first argument."""

PROMOTED: Mapping[Any, int] = {np.where: 1, np.clip: 0, np.dot: 0, np.vdot: 0, np.einsum: 1}
"""Functions whose arguments, from the given number on, are converted to one data type."""

FUNCTIONS: Mapping[Any, Function] = {
    **{getattr(np, name): function for name, function in METHODS.items()},
    np.amax: METHODS["max"],
    np.amin: METHODS["min"],
    np.where: lambda condition, x, y: torch.where(condition.bool(), x, y),
    np.broadcast_to: torch.broadcast_to,
    np.concatenate: lambda arrays, axis=0: torch.cat(list(arrays), axis),
    np.stack: lambda arrays, axis=0: torch.stack(list(arrays), axis),
    np.moveaxis: torch.movedim,
    np.take_along_axis: lambda x, indices, axis=-1: torch.take_along_dim(x, indices.long(), axis),
    np.count_nonzero: lambda x, axis=None: torch.count_nonzero(x, axis),
    np.bincount: lambda x, weights=None, minlength=0: torch.bincount(
        x.long(), None if weights is None else weights.double(), minlength
    ),
    np.einsum: lambda subscripts, *operands: torch.einsum(subscripts, *operands),
    np.zeros_like: _like(0.0),
    np.ones_like: _like(1.0),
    np.empty_like: _like(0.0),
    np.full_like: lambda x, value, dtype=None: _like(value)(x, dtype),
    np.ascontiguousarray: torch.Tensor.contiguous,
    np.array_equal: lambda x, y: x.shape == y.shape and bool(torch.eq(x, y).all()),
    np.nan_to_num: lambda x, nan=0.0, posinf=None, neginf=None: torch.nan_to_num(x, nan, posinf, neginf),
    np.roll: lambda x, shift, axis=None: torch.roll(x, shift, axis),
    np.unique: _unique,
    np.ndim: lambda x: x.ndim,
    np.dot: _dot,
    np.vdot: lambda x, y: torch.dot(x.reshape(-1), y.reshape(-1)),
    np.linalg.norm: _norm,
}
"""Functions that are not universal."""


def _created(shape: Any, value: Any, dtype: Any = None, *, device: torch.device) -> torch.Tensor:
    kind = _kind(np.asarray(value).dtype if dtype is None else dtype)
    return torch.full((shape,) if isinstance(shape, int) else tuple(shape), value, dtype=kind, device=device)


CREATORS: Mapping[Any, Function] = {
    np.asarray: lambda value, dtype=None, *, device: moved(value, device).to(_kind(dtype)),
    np.zeros: lambda shape, dtype=np.float64, *, device: _created(shape, 0, dtype, device=device),
    np.ones: lambda shape, dtype=np.float64, *, device: _created(shape, 1, dtype, device=device),
    np.full: _created,
    np.empty: lambda shape, dtype=np.float64, *, device: _created(shape, 0, dtype, device=device),
}
"""Functions that create an array on the device of their argument `like`."""
