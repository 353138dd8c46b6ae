"""Arrays in memory and on a device of torch.

What is computed in the oracle and the judge may be on a device (`torch_array`). There, `as_array(x)` converts a result without
copying it to memory, `numpy.asarray(x)` copies it, and `numpy.zeros(shape, like=x)` creates an array where x is.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Kind = TypeVar("Kind", bound=np.generic)
Pairs = tuple[npt.NDArray[Kind], npt.NDArray[Kind]]


def as_array(value: Any, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return `value` as `numpy.asarray` does, but an array of another library, which NumPy would copy to memory, as it is.

    Args:
        value: an array, a number or nested sequences of numbers.
        dtype: data type of the result; that of `value` by default.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__array_function__"):
        return np.asarray(value, dtype)
    found: npt.NDArray[Any] = value if dtype is None else value.astype(dtype, copy=False)
    return found


def placed(value: Any, device: str | None, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a copy of an array or a tensor as a NumPy array in memory, or as a `TorchArray` on a device.

    Args:
        value: an array or a tensor.
        device: torch device string; None for an array in memory.
        dtype: data type of the result.
    """
    if device is None:
        return np.array(value, dtype)
    import torch

    from conformance.numerics.torch_array import TorchArray
    from conformance.numerics.torch_functions import moved

    tensor = moved(value.detach() if isinstance(value, torch.Tensor) else value, torch.device(device))
    found: npt.NDArray[Any] = TorchArray(tensor).astype(dtype)
    return found


def placed_like(value: npt.NDArray[Kind], other: npt.NDArray[Any]) -> npt.NDArray[Kind]:
    """Return an array where `other` is; an axis along which `value` is broadcast stays broadcast."""
    return np.asarray(value, like=other)


def neighbours(array: npt.NDArray[Kind], axis: int) -> Pairs[Kind]:
    """Return the first and the second elements of the pairs 0 and 1, 2 and 3, and so on along an axis.

    Example:
        >>> neighbours(np.array([True, False, True]), 0)
        (array([ True]), array([False]))
    """
    before, end = (slice(None),) * axis, array.shape[axis] // 2 * 2
    return array[(*before, slice(0, end, 2))], array[(*before, slice(1, end, 2))]
