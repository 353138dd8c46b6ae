"""NumPy's functions on torch tensors: one set of equations for arrays in memory and for arrays on an accelerator.

The equations of the oracle and the judge are written in NumPy. A `TorchArray` wraps a tensor and implements NumPy's protocols for
arrays of other libraries, `__array_ufunc__` (NEP 13) and `__array_function__` (NEP 18), so that `np.sqrt(x)`, `x @ y` and
`scipy.special.erf(x)` are computed where the tensor is. Data types are promoted by NumPy's rules (NEP 50). NumPy arrays among the
operands are moved to the tensor's device; an axis along which one is broadcast is moved once. A function that `torch_functions`
does not define for its arguments is computed by NumPy on copies in memory, and its results are moved back. The copies are
read-only, so that NumPy refuses to change one in place of the array.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from conformance.numerics.torch_functions import (
    AT,
    BOOLEAN,
    CREATORS,
    DTYPES,
    FUNCTIONS,
    IN_PLACE,
    METHODS,
    NAMES,
    OF_REALS,
    PROMOTED,
    REDUCTIONS,
    UFUNCS,
    moved,
)

# Methods that NumPy computes in memory, since torch has no equivalent here.
_IN_MEMORY = frozenset({"argsort", "cumprod", "prod", "repeat", "round", "searchsorted", "squeeze", "take"})


class TorchArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A torch tensor with the interface of a NumPy array, as far as the oracle and the judge use it.

    Attributes:
        tensor: the tensor; its dtype is one that NumPy has.

    Example:
        >>> x = TorchArray(torch.tensor([1.0, 4.0], dtype=torch.float64))
        >>> np.sqrt(x) + np.arange(2.0)
        TorchArray([1., 3.], device='cpu')
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Wrap a tensor, which is not copied."""
        self.tensor = tensor

    def __repr__(self) -> str:
        """Return the elements and the device."""
        return f"TorchArray({np.array2string(in_memory(self), separator=', ')}, device='{self.tensor.device}')"

    def __str__(self) -> str:
        """Return the elements as NumPy prints them."""
        return str(np.asarray(self)[()])

    def __format__(self, form: str) -> str:
        """Return a single element in a format for numbers."""
        return format(np.asarray(self)[()], form)

    @property
    def dtype(self) -> Any:
        """NumPy's data type."""
        return NAMES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbours along each axis, in bytes; 0 along an axis that is broadcast."""
        return tuple(stride * self.tensor.element_size() for stride in self.tensor.stride())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.tensor.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensor.numel()

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * self.tensor.element_size()

    @property
    def flat(self) -> "TorchArray":
        """The elements along one axis, for reading."""
        return self.ravel()

    @property
    def T(self) -> "TorchArray":  # noqa: N802  # NumPy's name.
        """The array with its axes in reverse order."""
        return self.transpose()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the elements as a NumPy array, always as a copy."""
        return np.array(self.tensor.cpu().numpy(), dtype)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.tensor)

    def __iter__(self) -> Iterator["TorchArray"]:
        """Iterate over the first axis."""
        return map(TorchArray, self.tensor)

    def __bool__(self) -> bool:
        """Return the truth value of a single element."""
        return bool(self.tensor)

    def __float__(self) -> float:
        """Return a single element as a number."""
        return float(self.tensor)

    def __int__(self) -> int:
        """Return a single element as an integer."""
        return int(self.tensor)

    def __index__(self) -> int:
        """Return a single integer for use as an index."""
        return operator.index(self.item())

    def __getitem__(self, index: Any) -> "TorchArray":
        """Return the elements at a NumPy index."""
        found, reversed_axes = self._index(index)
        return TorchArray((self.tensor.flip(reversed_axes) if reversed_axes else self.tensor)[found])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set the elements at a NumPy index."""
        found, reversed_axes = self._index(index)
        if reversed_axes:
            raise NotImplementedError(f"elements of a reversed axis cannot be set: {index}")
        self.tensor[found] = value if isinstance(value, float | int) else self._moved(value).to(self.tensor.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the elements in another data type; in memory if torch does not have it."""
        if np.dtype(dtype) not in DTYPES:
            return np.asarray(self).astype(dtype)
        return TorchArray(self.tensor.to(DTYPES[np.dtype(dtype)], copy=copy))

    def view(self, dtype: Any) -> Any:
        """Return the same bits as another data type; a copy in memory if torch does not have it."""
        if np.dtype(dtype) not in DTYPES:
            return np.asarray(self).view(dtype)
        return TorchArray(self.tensor.view(DTYPES[np.dtype(dtype)]))

    def copy(self) -> "TorchArray":
        """Return a contiguous copy."""
        return TorchArray(self.tensor.clone(memory_format=torch.contiguous_format))

    def reshape(self, *shape: Any) -> "TorchArray":
        """Return the elements in another shape."""
        return TorchArray(self.tensor.reshape(_one_or_several(shape)))

    def ravel(self) -> "TorchArray":
        """Return the elements along one axis."""
        return TorchArray(self.tensor.reshape(-1))

    def transpose(self, *axes: Any) -> "TorchArray":
        """Return the array with its axes in another order, by default reversed."""
        return TorchArray(self.tensor.permute(_one_or_several(axes) or tuple(reversed(range(self.ndim)))))

    def swapaxes(self, one: int, other: int) -> "TorchArray":
        """Return the array with two axes exchanged."""
        return TorchArray(self.tensor.transpose(one, other))

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self.tensor.tolist()

    def item(self, *index: int) -> Any:
        """Return an element as a Python number."""
        return (self.tensor[index] if index else self.tensor).item()

    def __getattr__(self, name: str) -> Any:
        """Return a method that NumPy also has as a function, such as `sum` or `argmax`."""
        if name not in METHODS and name not in _IN_MEMORY:
            raise AttributeError(f"a TorchArray has no attribute {name!r}")
        function = getattr(np, name)
        return lambda *arguments, **keywords: self.__array_function__(function, (), (self, *arguments), keywords)

    def __pow__(self, exponent: Any) -> Any:
        """Return a power; torch computes small constant powers by products."""
        if isinstance(exponent, np.generic) or not isinstance(exponent, int | float) or self.dtype.kind != "f":
            return np.power(self, exponent)
        return TorchArray(self.tensor**exponent)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Compute a universal function on the device (NEP 13)."""
        (out,), where = keywords.pop("out", (None,)), keywords.pop("where", True)
        if method == "at" and isinstance(inputs[0], TorchArray):
            target, index, values = inputs
            AT[ufunc](target.tensor, target._index(index)[0], self._moved(values))
            return None
        if method == "reduce" and ufunc in REDUCTIONS:
            given = {"axis": 0, **keywords, "out": out, "where": None if where is True else where}
            return self.__array_function__(REDUCTIONS[ufunc], (), inputs, {name: x for name, x in given.items() if x is not None})
        if method == "__call__" and ufunc in UFUNCS and not keywords:
            try:
                operands = self._promoted(ufunc, inputs)
                if isinstance(out, TorchArray) and where is True and _fits(out.tensor, operands, ufunc):
                    UFUNCS[ufunc](*operands, out=out.tensor)
                    return out
                return self._stored(TorchArray(UFUNCS[ufunc](*operands)), out, where)
            except (NotImplementedError, TypeError):
                pass
        return self._stored(_computed_in_memory(getattr(ufunc, method), inputs, keywords, self.tensor.device), out, where)

    def __array_function__(self, function: Any, types: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Compute another function of NumPy on the device (NEP 18)."""
        if function in IN_PLACE and isinstance(inputs[0], TorchArray):
            IN_PLACE[function](*map(self._tensors, inputs), **{name: self._tensors(x) for name, x in keywords.items()})
            return None
        given = dict(keywords)
        out = given.pop("out", None)
        try:
            found = self._on_device(function, inputs, given)
        except (NotImplementedError, TypeError):
            found = _computed_in_memory(function, inputs, given, self.tensor.device)
        return self._stored(found, out, True)

    def _on_device(self, function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if function in CREATORS:  # called with `like` (NEP 35)
            return TorchArray(CREATORS[function](*inputs, **keywords, device=self.tensor.device))
        if function not in FUNCTIONS:
            raise NotImplementedError
        arguments = map(self._tensors, _promoted_arguments(function, inputs))
        return _wrapped(FUNCTIONS[function](*arguments, **{name: self._tensors(x) for name, x in keywords.items()}))

    def _index(self, index: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return a NumPy index as torch's, for the tensor with some axes reversed, and these axes: those with negative steps."""
        given = index if isinstance(index, tuple) else (index,)
        parts = [np.asarray(p, None if p else np.intp) if isinstance(p, list) else p for p in given]
        found, reversed_axes = list[Any](), list[int]()
        dimensions = max((1 if _is_mask(p) else p.ndim for p in parts if isinstance(p, np.ndarray | TorchArray)), default=0)
        for number, part in enumerate(parts):
            if isinstance(part, slice) and part.step is not None and part.step < 0:
                at = _axis_of(parts, number, self.ndim)
                last, places = self.shape[at] - 1, range(*part.indices(self.shape[at]))
                part = slice(last - places.start, last - places.stop, -places.step)
                reversed_axes.append(at)
            elif isinstance(part, np.ndarray | TorchArray):
                part = self._moved(part)
                part = part if part.dtype == torch.bool else part.long()
            elif isinstance(part, int | np.integer) and not isinstance(part, bool):
                # Beside arrays, NumPy takes an integer for an array, which decides where the axes of the result are.
                part = torch.full((1,) * dimensions, int(part), device=self.tensor.device) if dimensions else int(part)
            found.append(part)
        return tuple(found), tuple(reversed_axes)

    def _moved(self, value: Any) -> torch.Tensor:
        found: torch.Tensor = moved(value, self.tensor.device)
        return found

    def _tensors(self, value: Any) -> Any:
        """Return a value with every array in it as a tensor on this array's device."""
        if isinstance(value, TorchArray | np.ndarray | np.generic):
            return self._moved(value)
        return type(value)(map(self._tensors, value)) if type(value) in (list, tuple) else value

    def _promoted(self, ufunc: Any, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Return the operands on this array's device in the data type in which NumPy would compute."""
        kinds = {x.tensor.dtype if isinstance(x, TorchArray) else type(x) for x in inputs}
        reals = [kind for kind in kinds if isinstance(kind, torch.dtype) and kind.is_floating_point]
        if len(reals) == 1 and kinds <= {*reals, float, int}:  # The usual case; NumPy's rules give the same.
            (kind,), device = reals, self.tensor.device
            return [x.tensor if isinstance(x, TorchArray) else _scalar(x, kind, device) for x in inputs]
        common = np.result_type(*(x.dtype if hasattr(x, "dtype") else x for x in inputs))
        if ufunc in OF_REALS and common.kind not in "f":
            common = np.dtype(np.float64)
        kind, device = DTYPES[common], self.tensor.device
        return [self._moved(x).to(kind) if not _is_number(x) else _scalar(_number(x), kind, device) for x in inputs]

    def _stored(self, found: Any, out: Any, where: Any) -> Any:
        """Return a result, or `out` after the result is stored in it at the elements that `where` selects."""
        if out is None:
            return found
        if not np.can_cast(found.dtype, out.dtype, "same_kind"):
            raise TypeError(f"a result of {found.dtype} cannot be stored in an array of {out.dtype}")
        if where is True:
            out[...] = found if isinstance(out, TorchArray) else in_memory(found)
        else:
            np.copyto(out, found, where=where)
        return out


def in_memory(value: Any) -> Any:
    """Return a value with every `TorchArray` in it, also within lists and tuples, as a NumPy array in memory."""
    if isinstance(value, TorchArray):
        return np.asarray(value)
    return type(value)(map(in_memory, value)) if type(value) in (list, tuple) else value


def _computed_in_memory(function: Any, inputs: Sequence[Any], keywords: Mapping[str, Any], device: torch.device) -> Any:
    """Return the result of a function of NumPy on copies in memory, moved to the device."""
    found = function(*map(_to_read, inputs), **{name: _to_read(value) for name, value in keywords.items()})
    return _placed(found, device)


def _to_read(value: Any) -> Any:
    """Return a value with a read-only copy of every `TorchArray` in it."""
    if isinstance(value, TorchArray):
        copy = np.asarray(value)
        copy.flags.writeable = False
        return copy
    return type(value)(map(_to_read, value)) if type(value) in (list, tuple) else value


def _wrapped(found: Any) -> Any:
    """Return a result of a function of torch with every tensor in it as a `TorchArray`."""
    if isinstance(found, tuple):
        return tuple(map(_wrapped, found))
    return TorchArray(found) if isinstance(found, torch.Tensor) else found


def _placed(found: Any, device: torch.device) -> Any:
    """Return a result of NumPy with every array in it, whose data type torch has, on the device; scalars stay in memory."""
    if isinstance(found, tuple | list):
        return getattr(found, "_make", type(found))(_placed(x, device) for x in found)  # `_make` of a named tuple
    known = isinstance(found, np.ndarray) and found.dtype in DTYPES
    return TorchArray(moved(found, device)) if known and found.ndim else found


def _one_or_several(lengths: tuple[Any, ...]) -> tuple[int, ...]:
    """Return lengths or axes that are given as separate arguments or as one tuple."""
    found = lengths[0] if len(lengths) == 1 and isinstance(lengths[0], tuple | list) else lengths
    return tuple(map(int, found))


def _promoted_arguments(function: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a function with all arrays that it combines in one data type."""
    if function in (np.concatenate, np.stack):
        return (_of_one_dtype(inputs[0]), *inputs[1:])
    first = PROMOTED.get(function, len(inputs))
    return [*inputs[:first], *_of_one_dtype(inputs[first:])]


def _of_one_dtype(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays and numbers as arrays of the data type in which NumPy would combine them; None stays None."""
    given = [x.dtype if hasattr(x, "dtype") else x for x in arrays if x is not None]
    common = np.result_type(*given) if given else None
    return [x if x is None else x.astype(common, copy=False) if hasattr(x, "dtype") else np.full((), x, common) for x in arrays]


def _is_mask(part: Any) -> bool:
    """Return whether a part of an index is a boolean array."""
    return getattr(part, "dtype", None) == np.bool_


def _axis_of(parts: Sequence[Any], number: int, ndim: int) -> int:
    """Return the axis to which a part of an index applies."""

    def axes(part: Any) -> int:
        return 0 if part is None or part is Ellipsis else part.ndim if _is_mask(part) else 1

    before, after = sum(map(axes, parts[:number])), sum(map(axes, parts[number:]))
    return ndim - after if any(part is Ellipsis for part in parts[:number]) else before


def _fits(out: torch.Tensor, operands: Sequence[torch.Tensor], ufunc: Any) -> bool:
    """Return whether torch can write the result to `out` without a conversion or a change of its shape."""
    if ufunc in BOOLEAN or out.dtype != operands[0].dtype:
        return False
    if ufunc is np.matmul:
        return all(x.data_ptr() != out.data_ptr() for x in operands)
    return bool(np.broadcast_shapes(*(x.shape for x in operands)) == out.shape)


def _is_number(x: Any) -> bool:
    """Return whether an operand is a number in memory, which is not moved to the device but created there."""
    return not isinstance(x, TorchArray) and not getattr(x, "ndim", 0)


def _number(x: Any) -> Any:
    return x.item() if hasattr(x, "item") else x


def _scalar(value: Any, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    return _scalar_of(value, str(value), kind, device)  # The text differs for -0.0 and 0.0, which are equal.


@lru_cache(maxsize=4096)
def _scalar_of(value: Any, text: str, kind: torch.dtype, device: torch.device) -> torch.Tensor:
    del text
    return torch.full((), value, dtype=kind, device=device)
