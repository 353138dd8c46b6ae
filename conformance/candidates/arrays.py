"""Arrays of any library: described without accessing their values, then read into NumPy."""

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
    """The description of an array whose values have not been read.

    Attributes:
        dtype: name of the dtype, such as `float32`.
        shape: length of each axis.
        device: torch device string; None if the array's library has no devices.
        read: returns the values as a NumPy array, half-precision values in float32; raises `CandidateError` if they cannot be read.
        tensor: the tensor that is described; None if the values are in memory or still to be received.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str | None
    read: Callable[[], Any]
    tensor: Any = None

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at a NumPy index."""
        return self.read()[index]


@dataclass(frozen=True)
class Unreadable:
    """A value that is not an array, with the reason."""

    reason: str


def held_in(dtype: str, values: Any) -> Described:
    """Return the description of an array of the given dtype with the given NumPy values."""
    return Described(dtype, values.shape, None, lambda: values)


def described(value: Any) -> Described:
    """Return the description of a NumPy array, a torch tensor or an object with `__dlpack__`.

    Raises:
        CandidateError: the value is not an array, or the value's own code raises an exception.
    """
    if isinstance(value, Unreadable):
        raise CandidateError(value.reason)
    return value if isinstance(value, Described) else _guarded(partial(_described, value), value)


def _described(value: Any) -> Described:
    if isinstance(value, np.ndarray | np.generic):
        # ml_dtypes' bfloat16, as JAX's arrays have it, is no number to a reader that does not know it.
        read = partial(value.astype, np.float32) if value.dtype.name == "bfloat16" else partial(np.asarray, value)
        return Described(value.dtype.name, value.shape, None, read)
    if not hasattr(value, "detach"):
        import torch.utils.dlpack

        if not hasattr(value, "__dlpack__"):
            raise CandidateError(f"a {type(value).__name__} is no array; NumPy's, torch's and any with __dlpack__ are")
        value = torch.utils.dlpack.from_dlpack(value)
    dtype = str(value.dtype).removeprefix("torch.")
    return Described(
        dtype, tuple(value.shape), str(value.device), lambda: _guarded(partial(_to_numpy, value), value), _plain(value)
    )


def _plain(value: Any) -> Any:
    """Return a tensor that holds its numbers one after another, as they are; None for any other."""
    import torch

    return value if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided else None


def _to_numpy(value: Any) -> Any:
    tensor = value.detach().cpu()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4:
        tensor = tensor.float()
    return tensor.resolve_conj().resolve_neg().numpy()


def _guarded(read: Callable[[], T], value: Any) -> T:
    """Return the result of `read`; convert an exception raised by the candidate's object `value` to `CandidateError`."""
    try:
        return read()
    except (CandidateError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sparse, nested, quantized and meta tensors raise different errors; __dlpack__ may exit
        layout, device = getattr(value, "layout", None), getattr(value, "device", None)
        what = f"a tensor of layout {layout} on {device}" if layout is not None else f"a {type(value).__name__}"
        raise CandidateError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


def tensors_in(value: Any) -> "Iterator[torch.Tensor]":
    """Yield the tensors in a value in order: the value itself, or tensors nested in mappings, lists and tuples at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for part in value.values() for tensor in tensors_in(part))
    elif isinstance(value, list | tuple):
        yield from (tensor for part in value for tensor in tensors_in(part))
