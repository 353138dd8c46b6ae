"""Validation before any value is judged: name, shape, dtype, device, finiteness."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.candidates.arrays import described
from conformance.errors import CandidateError, NotFiniteError
from conformance.judge.judged_elements import judged_elements, required_zeros
from conformance.model.activation import Activation
from conformance.model.activations import missing_part, output_of_transformers
from conformance.model.architecture import Architecture
from conformance.names import class_name
from conformance.numerics.formats import Captured, placed
from conformance.oracle import Network


def row_of(name: Any, table: Mapping[str, Activation], a: Architecture) -> Activation:
    """Return the row for `name` in the table of a network of architecture `a`.

    Raises:
        CandidateError: `name` is not a string, or not in the table; the message names the part that the network lacks, or the
            nearest name.
    """
    if not isinstance(name, str):
        raise CandidateError(f"an activation's name is a text, not {class_name(name)}")
    if name in table:
        return table[name]
    if (own := output_of_transformers(name, a)) in table:
        raise CandidateError(f"{name} is called {own} here")
    if part := missing_part(name, a):
        raise CandidateError(f"this network has no {name}, which a network with {part} has; leave it out for networks without")
    from difflib import get_close_matches

    near = get_close_matches(name, table, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise CandidateError(f"unknown activation {name!r:.200}{hint}")


def _setting(row: Activation, axis: str) -> str:
    """Return the name of the config setting that determines an axis, or an empty string if there is none."""
    if axis != "feature" or row.name.startswith(("cls.seq_relationship", "qa_outputs")):
        return "num_attention_heads" if axis == "head" else ""
    ends = {"classifier": "num_labels", "decoder": "vocab_size", "log_probs": "vocab_size"}
    usual = "intermediate_size" if ".intermediate." in row.name else "hidden_size"
    return ends.get(row.name.rsplit(".", 1)[-1], usual)


def _unlike_config(row: Activation, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return a description of the axes of a shape that contradict the config."""
    if len(found) != len(expected):
        return ""
    sizes = {_setting(row, axis): (a, b) for axis, a, b in zip(row.axes, found, expected, strict=True) if a != b}
    return "".join(f"; the config's {name} is {b}, and here it is {a}" for name, (a, b) in sizes.items() if name)


def _counted(count: int) -> str:
    return "1 element in all is" if count == 1 else f"{count} elements in all are"


def accepted_array(row: Activation, value: Any, network: Network, dtype: str, device: str, on: str | None = None) -> Captured:
    """Return `value` as a copy in float32, or in float64 for that dtype, after checking dtype, device, shape and finiteness.

    The batch axis may have length 1 or be missing where rows cannot differ (position embeddings). NumPy arrays have no device.
    The copy is a NumPy array in memory, or, if `on` is a device, an array there.
    Values that are neither judged nor required to be 0, as at padded rows, may be anything; non-finite ones are replaced by 0.

    Raises:
        CandidateError: dtype, device or shape is not as expected.
        NotFiniteError: an element that is judged, or must be 0, is not finite.
    """
    found = described(value)
    if found.dtype != dtype:
        raise CandidateError(f"dtype is {found.dtype}, expected {dtype}; convert it")
    if found.device is not None and found.device.split(":")[0] != device.split(":")[0]:
        raise CandidateError(f"device is {found.device}, expected {device}")
    architecture, batch = network.architecture, network.batch
    shape = row.shape(batch.size, batch.length, architecture.num_attention_heads, batch.states_length)
    if found.shape != shape and not (row.is_same_for_all_rows and found.shape in ((1, *shape[1:]), shape[1:])):
        axes = f" ({', '.join(row.axes)})" if row.axes else ""
        expected = f"{shape[1:]} or {shape}" if row.is_same_for_all_rows else f"{shape}"
        raise CandidateError(f"shape is {found.shape}, expected {expected}{axes}{_unlike_config(row, found.shape, shape)}")
    values = found.tensor if on is not None and found.tensor is not None else found.read()
    own = placed(values, on, np.float64 if dtype == "float64" else np.float32)
    copy: Captured = own if own.shape == shape else np.broadcast_to(own, shape).copy()
    finite = np.isfinite(copy)
    if finite.all():
        return copy
    judged, (zeros, what) = judged_elements(row, batch, copy.shape), required_zeros(row, network.table, batch)
    bad = ~finite & (judged | zeros)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        message = f"{copy[index]} at {list(index)}, and {_counted(int(bad.sum()))} not finite"
        if not (bad & judged).any():
            message += f", all at {what}, where it must be 0"
        raise NotFiniteError(message, np.asarray(bad))
    # A NaN that may be there must not enter the sums.
    copy[~finite] = 0.0
    return copy
