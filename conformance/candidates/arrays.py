"""What a runner yields: pairs of a name and an array of any library, described without its values, then read into NumPy."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from conformance.errors import CandidateError
from conformance.names import class_name, described_error

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
# Names of items that are no activations. The value of each is an `Unreadable`, whose reason is a sentence for the report.
UNCOMPARED = "the returned value"  # what of it was not compared with activations
CALLED = "the call"  # in which way, if not in that of its names
GUESSED = "the mapping"  # what of it no value confirms
UNCOVERED = "parameters and hooks"  # which of them change the result, and hold nothing of the checkpoint
NOTES = (UNCOVERED, UNCOMPARED, CALLED, GUESSED)
Stream = Iterator[tuple[str, Any]]  # pairs of an activation's name and its value, in the order of computation


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
    if type(value) is Unreadable:
        raise CandidateError(value.reason)
    return value if type(value) is Described else _guarded(partial(_described, value), value)


def _described(value: Any) -> Described:
    """Return the description; the class of the value is that by `type`, since an attribute `__class__` may be any other."""
    if issubclass(type(value), np.ndarray | np.generic):
        array = np.asarray(value)  # of the base class, whose attributes run no code of the candidate's
        # ml_dtypes' bfloat16, as JAX's arrays have it, is no number to a reader that does not know it.
        read = partial(array.astype, np.float32) if array.dtype.name == "bfloat16" else lambda: array
        return Described(array.dtype.name, array.shape, None, read)
    import torch.utils.dlpack

    if not issubclass(type(value), torch.Tensor):
        if not hasattr(value, "__dlpack__"):
            raise CandidateError(f"a {class_name(value)} is no array; NumPy's, torch's and any with __dlpack__ are")
        value = torch.utils.dlpack.from_dlpack(value)
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(map(int, value.shape))
    return Described(dtype, shape, str(value.device), lambda: _guarded(partial(_values, value, shape), value), _plain(value))


def _values(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return the values in NumPy; raise `CandidateError` if they are not of the shape that the tensor says."""
    values = _to_numpy(tensor)
    if type(values) is not np.ndarray or values.shape != shape:
        raise CandidateError(f"the values of a tensor of shape {shape} are not an array of that shape")
    return values


def _plain(value: Any) -> Any:
    """Return a tensor that holds its numbers one after another, as they are; None for any other."""
    import torch

    return value if _is_torchs(value) and value.layout is torch.strided else None


def _is_torchs(value: Any) -> bool:
    """Return whether the value is of a class of torch's own, so that its attributes run no code of the candidate's."""
    import torch

    return type(value) in (torch.Tensor, torch.nn.Parameter)


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
        what = f"a tensor of layout {value.layout} on {value.device}" if _is_torchs(value) else f"a {class_name(value)}"
        raise CandidateError(f"{what} cannot be read: {described_error(error)}") from error


def tensors_in(value: Any) -> "Iterator[torch.Tensor]":
    """Yield the tensors in a value in order: the value itself, or tensors nested in mappings, lists and tuples at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for part in value.values() for tensor in tensors_in(part))
    elif isinstance(value, list | tuple):
        yield from (tensor for part in value for tensor in tensors_in(part))


def pairs(output: Any, names: Iterable[str], *, notes: bool = False) -> Stream:
    """Yield the pairs of a mapping in the order of `names`, unknown names last, or the pairs of an iterable in its own order.

    Items with a name of `NOTES` are left out, unless `notes` is true.

    Raises:
        CandidateError: `output` is neither a mapping nor an iterable, or yields an item that is not a pair.
    """
    if isinstance(output, Mapping):
        order = {name: i for i, name in enumerate(names)}
        named = ((_plain_name(name), value) for name, value in output.items())
        yield from sorted(named, key=lambda item: order.get(item[0], len(order)))
        return
    if not isinstance(output, Iterable):
        raise CandidateError(f"a runner returns a mapping or an iterable of pairs, not {class_name(output)}")
    for item in output:
        if not isinstance(item, tuple) or len(item) != 2:
            raise CandidateError(f"a runner yields pairs of a name and an array, not {class_name(item)}")
        name = _plain_name(item[0])
        if notes or name not in NOTES:
            yield name, item[1]


def _plain_name(name: Any) -> Any:
    """Return an instance of a subclass of `str` as a plain `str`, since a subclass may override comparison and hashing."""
    return str.__str__(name) if isinstance(name, str) else name
