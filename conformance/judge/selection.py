"""Which elements are judged, and how many of their rows are independent."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from conformance.model.activation import Activation
from conformance.model.attention import attended_keys
from conformance.model.batch import Batch
from conformance.model.training import GIVEN
from conformance.numerics.formats import Array, Single

Mask = npt.NDArray[np.bool_]
Numbers = TypeVar("Numbers", Array, Single)


def judged_elements(row: Activation, batch: Batch, shape: tuple[int, ...]) -> Mask:
    """True where an element is judged.

    That is at unmasked positions; in attention at the keys that unmasked queries attend to; of sentences, those whose first token
    is unmasked, or any token where all are read.

    What a padded query computes is undefined on purpose: some implementations compute it, some zero it. Of a training run what its
    steps are judged from is not judged.
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


def zeroed(x: Numbers, judged: Mask) -> Numbers:
    """x with 0 where nothing is judged; x itself where everything is."""
    if judged.all():
        return x
    found = x.copy()
    if judged.ndim and judged.strides[-1] == 0:  # whole rows
        found[~judged[..., 0]] = 0.0
    else:
        np.copyto(found, 0.0, where=~judged)
    return found


def _read_sentences(row: Activation, batch: Batch) -> Mask:
    """(B,): whether an unmasked token is among those that the sentence is read off."""
    return np.asarray(batch.mask.any(1) if row.reads_all_tokens else batch.mask[:, 0])


def explained_elements(row: Activation, batch: Batch, shape: tuple[int, ...]) -> Mask:
    """True where a fault has to account for the candidate's array.

    That is what is judged, and the probabilities of masked keys, which must be 0.
    """
    if row.kind == "probs":
        return np.broadcast_to(batch.mask[:, None, :, None], shape)
    return judged_elements(row, batch, shape)


def independent_rows(row: Activation, batch: Batch, heads: int, *, coupled: bool) -> int:
    """How many groups of elements have independent roundings, if no inputs repeat.

    A step's own roundings are independent from row to row (last axis). Errors that arrive from a parent are shared by all that
    reads it: where queries look at the same keys (`coupled`), only whole sequences are independent.
    """
    if "batch" not in row.axes:  # a loss, or the gradient of a parameter
        return 1 if coupled else max(row.height, 1)
    if coupled or not {"position", "query", "state"}.intersection(row.axes):
        return int((batch.mask.any(1) if coupled else _read_sentences(row, batch)).sum())
    tokens = int((batch.states_mask if "state" in row.axes else batch.mask).sum())
    return tokens * heads if "query" in row.axes else tokens
