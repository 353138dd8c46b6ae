"""What must hold of an activation before its rounding errors are judged, and why it does not, in a sentence.

- Its name is in the table, and its shape, dtype and device are those that were asked for.
- Its elements are finite; where they are not, the attention mask, or an overflow of wrong inputs, may be the reason.
- Attention probabilities of masked keys are 0.
- A gradient is 0 where no result depends on the element: at padded positions and queries, and at masked keys and encoder states.
- A step without arithmetic, such as a look-up or a copy, has the oracle's result bit for bit.

Numbers below the smallest normal number count as 0, since a device may flush them to 0 or not.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.candidates.arrays import described
from conformance.errors import CandidateError, NotFiniteError
from conformance.judge.judged_elements import judged_elements, required_zeros, zeroed
from conformance.judge.observation import Block, Observation
from conformance.judge.segment import Segment
from conformance.model.activation import Activation
from conformance.model.activations import missing_part, output_of_transformers
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.gradients import is_gradient
from conformance.names import class_name
from conformance.numerics.formats import Captured, Format, Mask, placed
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


def violation(observation: Observation, smallest_normal: float) -> str:
    """Return why elements that must be 0 are wrong; empty if they are all 0 or below the smallest normal number.

    If the gradients from which a gradient is computed are already wrong there, its step is not at fault.
    """
    zeros, what = required_zeros(observation.activation, observation.network.table, observation.network.batch)
    if not zeros.any():
        return ""
    wrong = np.broadcast_to(zeros, observation.actual.shape)
    most = np.abs(observation.actual).max(initial=0.0, where=wrong)
    if most >= smallest_normal and is_gradient(observation.name):
        wrong = wrong & (np.abs(observation.whole.segment.value) < smallest_normal)
        most = np.abs(observation.actual).max(initial=0.0, where=wrong)
    if most < smallest_normal:
        return ""
    if is_gradient(observation.name):
        return f"{what} have a gradient, up to {most:.3g}, where they must have none"
    return f"{what} get probability, up to {most:.3g}, where they must get none"


def difference_from_exact(block: Block, storage: Format) -> str:
    """Return how an exact activation differs from its correct value; empty if it does not."""
    differing = zeroed(block.residual, block.judged)
    if not differing.any():
        return ""
    ulps, count = np.abs(differing) / storage.ulp(block.segment.value), int(block.judged.sum())
    # If the error exceeds 2^p ULP in a format with p bits of precision, no digit agrees, and the number of ULP says nothing.
    units = f"{ulps.max():.3g} unit{'' if ulps.max() == 1.0 else 's'} in the last place"
    largest = units if ulps.max() <= 2.0**storage.precision else f"{np.abs(differing).max():.3g}"
    return f"{int((ulps > 0).sum())} of {count} elements differ from the exact result, by up to {largest}; none may differ"


_INVERTED = (
    ": all of the sequences without padding, and nothing else, as an inverted mask (mask-inverted) leaves it. It hides every key "
    "of these, and the softmax of −∞ alone is NaN; 1 in attention_mask means that a key is attended to"
)
_PRODUCT = (
    ": all of it, as a mask leaves it that is added as (1 − mask) · −∞. At keys with mask 1 this is 0 · −∞, which is NaN; use the "
    "format's lowest number, or `masked_fill`"
)


def mask_that_explains(activation: Activation, batch: Batch, places: Mask) -> str:
    """Return the end of a sentence on the mask that explains which values are not finite; empty if none does.

    A softmax over keys that are all hidden by −∞ is NaN: with an inverted mask, in the sequences without padding. A mask explains
    no gradient, since the forward pass before it is finite.

    Args:
        activation: the first activation that is not finite.
        batch: the batch.
        places: the elements that are not finite, in the activation's shape.
    """
    if activation.layer is None or activation.axes[:1] != ("batch",) or is_gradient(activation.name):
        return ""
    axes = tuple(range(1, places.ndim))
    judged = judged_elements(activation, batch, places.shape)
    found = places & judged
    sequences, rows = found.any(axes), judged.any(axes)
    if not np.array_equal(found, judged & found.any(axes, keepdims=True)):  # a part of some sequences
        return ""
    keys = batch.states_mask[:, None] if "state key" in activation.axes else batch.keys
    unpadded = keys.all((1, 2)) & rows
    if np.array_equal(unpadded, rows):
        return ""
    if np.array_equal(sequences, rows):
        return _PRODUCT if activation.kind == "probs" else ""
    return _INVERTED if np.array_equal(sequences, unpadded) else ""


def is_overflow_of_inputs(segment: Segment, places: Mask, storage: Format) -> bool:
    """Return whether the float64 result of the captured inputs exceeds the format's range at all of these places.

    The product of query and key may be stored before it is divided by √d, so scores overflow if √d times the scores does.

    Args:
        segment: the segment of the activation.
        places: the judged elements that are not finite in the candidate.
        storage: storage format of the candidate.
    """
    activation = segment.network.table[segment.name]
    factor = math.sqrt(segment.network.architecture.head_size) if activation.kind == "scores" else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = storage.round(np.asarray(segment.value) * factor)
    return not bool(np.isfinite(rounded[places]).any())
