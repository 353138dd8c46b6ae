"""Selection of the judged elements, and of the independent rows among them."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from conformance.model.activation import Activation, attended_keys
from conformance.model.batch import Batch
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.model.training import GIVEN
from conformance.numerics.formats import Array, Mask, Single, as_array

Numbers = TypeVar("Numbers", Array, Single)
_PROBABILITIES = ("probs", "copy", "dropout")  # kinds of attention probabilities, with their dropout


def judged_elements(row: Activation, batch: Batch, shape: tuple[int, ...]) -> Mask:
    """Return a boolean mask of the judged elements.

    Judged are unmasked positions; in attention, the keys that unmasked queries attend to; for sentences, those whose first
    token is unmasked, or any token if the sentence is computed from all of them.

    The value at a padded query is undefined on purpose: some implementations compute it, others set it to zero. In a training
    run, the given values from which its steps are judged are not judged themselves.
    """
    mask = batch.mask
    if row.kind in GIVEN:
        return np.broadcast_to(np.zeros((), np.bool_), shape)
    if "query" in row.axes:
        pairs = mask[:, :, None] & attended_keys(row, batch)
        keep = pairs[:, None] if "head" in row.axes else pairs[..., None]
    elif "position" in row.axes:
        keep = mask[:, :, None]
    elif "state" in row.axes:
        keep = batch.states_mask[:, :, None]
    elif "batch" in row.axes:
        keep = _read_sentences(row, batch)[:, None]
    else:
        keep = np.ones((1,) * len(shape), np.bool_)
    return np.broadcast_to(keep, shape)


def required_zeros(row: Activation, table: Mapping[str, Activation], batch: Batch) -> tuple[Mask, str]:
    """Return the elements that must be 0, as an array that broadcasts to the activation, and their name.

    They are the attention probabilities of masked keys at unmasked queries, and the gradients at elements on which no result
    depends: padded positions, masked encoder states, padded queries and, in attention scores, masked keys. A probability is 0 at a
    masked key, but results depend on it.

    Args:
        row: the activation's row of the table.
        table: the rows of the network by name, with the activation that a gradient is of.
        batch: the batch.
    """
    if row.kind == "probs":
        return (batch.mask[:, :, None] & ~attended_keys(row, batch))[:, None], "masked keys"
    if not is_gradient(row.name):
        return np.zeros((), np.bool_), ""
    if "query" in row.axes:
        of = table.get(row.name.removesuffix(SUFFIX), row)
        read = batch.mask[:, :, None] & (attended_keys(row, batch) | (of.kind in _PROBABILITIES))
        return ~read[:, None] if "head" in row.axes else ~read[..., None], "padded queries or masked keys"
    if "state" in row.axes:
        return ~batch.states_mask[:, :, None], "masked encoder states"
    if "position" in row.axes:
        return ~batch.mask[:, :, None], "padded positions"
    return np.zeros((), np.bool_), ""


def zeroed(x: Numbers, judged: Mask) -> Numbers:
    """Return x with 0 at elements that are not judged; x itself, not a copy, if all are judged."""
    if judged.all():
        return x
    found = x.copy()
    if judged.ndim and judged.strides[-1] == 0:  # the mask selects whole rows
        found[~judged[..., 0]] = 0.0
    else:
        np.copyto(found, 0.0, where=~judged)
    return found


def _read_sentences(row: Activation, batch: Batch) -> Mask:
    """Return a mask of shape (B,): whether a token from which the sentence is computed is unmasked."""
    return as_array(batch.mask.any(1) if row.reads_all_tokens else batch.mask[:, 0])


def elements_to_explain(row: Activation, batch: Batch, shape: tuple[int, ...]) -> Mask:
    """Return a boolean mask of the elements that a fault has to account for.

    These are the judged elements and the probabilities of masked keys, which must be 0.
    """
    if row.kind == "probs":
        return np.broadcast_to(batch.mask[:, None, :, None], shape)
    return judged_elements(row, batch, shape)


def sums_of_independent_rows(row: Activation, x: Array | Mask, *, coupled: bool) -> Array:
    """Return the sum of x over each group of elements with independent roundings, if no inputs repeat.

    A step's own roundings are independent between rows (last axis). Errors of a parent are shared by all elements computed from
    it: if queries attend to the same keys (`coupled`), only whole sequences are independent.

    Args:
        row: the activation's row of the table.
        x: an array of the activation's shape.
        coupled: whether errors of a parent are shared by a whole sequence.
    """
    depth = max(x.ndim - 1, 1) if "batch" in row.axes else int("row" in row.axes)  # a loss has no rows
    if coupled:
        depth = int("batch" in row.axes)
    # A mask that repeats along an axis is summed once.
    once = x[tuple(slice(1) if axis >= depth and stride == 0 else slice(None) for axis, stride in enumerate(x.strides))]
    return as_array(once.sum(tuple(range(depth, x.ndim))) * (x.size / max(once.size, 1)), np.float64)
