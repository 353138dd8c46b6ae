"""Arrays of whatever library a candidate computes with: described before any value is touched, then read into NumPy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from conformance.errors import CandidateError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Described:
    """An array whose values have not been read.

    Attributes:
        dtype: its name, as `float32`.
        shape: the length of each axis.
        device: a torch device string; None where its library has no devices.
        read: the values in NumPy, those of a half format in float32; raises `CandidateError` where they cannot be read.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str | None
    read: Callable[[], Any]

    def __getitem__(self, index: Any) -> Any:
        """An element, or several, as NumPy has them."""
        return self.read()[index]


@dataclass(frozen=True)
class Unreadable:
    """What is no array, and why."""

    reason: str


def held_in(dtype: str, values: Any) -> Described:
    """NumPy's values as if they lay in an array of that dtype."""
    return Described(dtype, values.shape, None, lambda: values)


def described(value: Any) -> Described:
    """What NumPy, torch or DLPack say of an array; `CandidateError` where it is none, or its own code raises."""
    if isinstance(value, Unreadable):
        raise CandidateError(value.reason)
    return value if isinstance(value, Described) else _guarded(partial(_described, value), value)


def _described(value: Any) -> Described:
    if isinstance(value, np.ndarray | np.generic):
        return Described(value.dtype.name, value.shape, None, partial(np.asarray, value))
    if not hasattr(value, "detach"):
        import torch.utils.dlpack

        if not hasattr(value, "__dlpack__"):
            raise CandidateError(f"a {type(value).__name__} is no array; NumPy's, torch's and any with __dlpack__ are")
        value = torch.utils.dlpack.from_dlpack(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return Described(dtype, tuple(value.shape), str(value.device), lambda: _guarded(partial(_to_numpy, value), value))


def _to_numpy(value: Any) -> Any:
    tensor = value.detach().cpu()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
        tensor = tensor.float()
    return tensor.resolve_conj().resolve_neg().numpy()


def _guarded(read: Callable[[], T], value: Any) -> T:
    """What `read` returns; what the candidate's own object raises meanwhile is the candidate's error."""
    try:
        return read()
    except (CandidateError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sparse, nested, quantized, meta: each raises an error of its own; __dlpack__ may exit
        layout, device = getattr(value, "layout", None), getattr(value, "device", None)
        what = f"a tensor of layout {layout} on {device}" if layout is not None else f"a {type(value).__name__}"
        raise CandidateError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def tensors_in(value: Any) -> "Iterator[torch.Tensor]":
    """The tensors in a value, itself or in mappings, lists and tuples of any depth, in their order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for part in value.values() for tensor in tensors_in(part))
    elif isinstance(value, list | tuple):
        yield from (tensor for part in value for tensor in tensors_in(part))
