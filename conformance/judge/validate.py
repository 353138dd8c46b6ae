"""What is checked before any value: key, shape, dtype, device, finiteness."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from conformance.errors import CandidateError, NotFiniteError
from conformance.judge.selection import judged_elements
from conformance.model.activations import Activation
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.formats import Captured

T = TypeVar("T")


def known(name: Any, table: Mapping[str, Activation]) -> Activation:
    """The table's row for `name`; `CandidateError` for what is no name, or one that is in no table, with the nearest that is."""
    if not isinstance(name, str):
        raise CandidateError(f"an activation's name is a text, not {type(name).__name__}")
    if name in table:
        return table[name]
    from difflib import get_close_matches

    near = get_close_matches(name, table, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise CandidateError(f"unknown activation {name!r}{hint}")


def _described(value: Any) -> tuple[Any, str, tuple[int, ...], str | None]:
    """The array, or a tensor that shares its memory; its dtype's name; its shape; its device (None where it has none)."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value), value.dtype.name, value.shape, None
    if not hasattr(value, "detach"):
        import torch.utils.dlpack

        if not hasattr(value, "__dlpack__"):
            raise CandidateError(f"a {type(value).__name__} is no array; NumPy's, torch's and any with __dlpack__ are")
        value = torch.utils.dlpack.from_dlpack(value)
    return value, str(value.dtype).removeprefix("torch."), tuple(value.shape), str(value.device)


def _to_numpy(value: Any) -> Any:
    """The values in NumPy, a half format's in float32."""
    if isinstance(value, np.ndarray):
        return value
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


def _setting(row: Activation, axis: str) -> str:
    """The config's name of what fixes an axis; an empty text where the batch does, or nothing."""
    if axis != "feature" or row.name.startswith("cls.seq_relationship"):
        return "num_attention_heads" if axis == "head" else ""
    ends = {"classifier": "num_labels", "decoder": "vocab_size", "log_probs": "vocab_size"}
    usual = "intermediate_size" if ".intermediate." in row.name else "hidden_size"
    return ends.get(row.name.rsplit(".", 1)[-1], usual)


def _unlike_config(row: Activation, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What of a shape is at odds with the config, in words."""
    if len(found) != len(expected):
        return ""
    sizes = {_setting(row, axis): (a, b) for axis, a, b in zip(row.axes, found, expected, strict=True) if a != b}
    return "".join(f"; the config's {name} is {b}, and here it is {a}" for name, (a, b) in sizes.items() if name)


def accepted_array(row: Activation, value: Any, architecture: Architecture, batch: Batch, dtype: str, device: str) -> Captured:
    """`value` as a copy in float32, or float64 for that dtype, once dtype, device, shape and finiteness are right.

    An axis of length 1 stands for the batch where rows cannot differ (position embeddings). NumPy arrays have no device. Values
    at padded rows may be anything.

    Raises:
        CandidateError: what was found, and what was expected; `NotFiniteError` for values.
    """
    held, found, dimensions, where = _guarded(lambda: _described(value), value)
    if found != dtype:
        raise CandidateError(f"dtype is {found}, expected {dtype}")
    if where is not None and where.split(":")[0] != device.split(":")[0]:
        raise CandidateError(f"device is {where}, expected {device}")
    shape = row.shape(batch.size, batch.length, architecture.num_attention_heads)
    same_for_all = row.kind in ("position_lookup", "sinusoids")
    if dimensions != shape and not (same_for_all and dimensions in ((1, *shape[1:]), shape[1:])):
        axes = f" ({', '.join(row.axes)})" if row.axes else ""
        raise CandidateError(f"shape is {dimensions}, expected {shape}{axes}{_unlike_config(row, dimensions, shape)}")
    array = np.broadcast_to(_guarded(lambda: _to_numpy(held), held), shape)
    copy: Captured = np.array(array, np.float64) if dtype == "float64" else np.array(array, np.float32)
    finite = np.isfinite(copy)
    if finite.all():
        return copy
    bad = ~finite & judged_elements(row, batch, copy.shape)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise NotFiniteError(f"{copy[index]} at {list(index)}, and {int(bad.sum())} elements in all are not finite")
    # Padded rows are nobody's business, but a NaN there must not reach our own sums.
    copy[~finite] = 0.0
    return copy
