"""Which elements are judged, and which of them have independent errors.

A program rounds equal inputs equally, so repetitions are a single draw of noise: the embedding of [CLS] at position 0 in every
sequence, every layer of a text that occurs twice in a batch, and, for an elementwise function, each input that occurs at several
places.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from conformance.model.activation import Activation, attended_keys
from conformance.model.batch import Batch
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.model.training import GIVEN
from conformance.numerics.formats import Array, Captured, Mask, Single, as_array
from conformance.numerics.memo import once_an_array

Hashes = npt.NDArray[np.int64]


def hashed(values: Captured, depth: int) -> Hashes:
    """Return a hash of each row's bits; rows are indexed by the first `depth` axes. Formats up to 32 bits are stored as float32.

    The hash is Σ h_k (b_k xor b_k/2^31) modulo 2^64 over the row's words b, with fixed odd random numbers h (Knuth 1998, section
    6.4). If the terms of two rows differ by multiples of 2^t, their hashes are equal with a probability of about 2^(t − 63): 2^-63,
    2^-46 in half-precision formats, whose words end in sixteen zeros, and 2^-31 if the rows differ in signs alone. Without the
    shift, a change of sign adds 2^63, whatever h is, and in a row of an even number of float64 elements all of them cancel.
    """
    rows = values.reshape(*values.shape[:depth], -1)
    if rows.dtype == np.float32 and rows.shape[-1] % 2:
        rows = np.concatenate([rows, np.zeros_like(rows[..., :1])], -1)
    bits = np.ascontiguousarray(rows, like=rows).view(np.int64)
    mixed = bits >> 31
    mixed &= 2**33 - 1  # a signed shift fills in copies of the sign
    mixed ^= bits
    mixed *= _factors(bits.shape[-1])
    return np.asarray(mixed.sum(-1))


@lru_cache(maxsize=64)
def _factors(count: int) -> Hashes:
    """Return odd random numbers, the same in every process: raw integers of a Philox generator."""
    return (np.random.Philox(0).random_raw(count) | np.uint64(1)).view(np.int64)


@dataclass(frozen=True)
class Repeats:
    """Assignment of rows or elements to draws of noise.

    Attributes:
        number: the draw of each row or element; (B,) where rows are sequences, (B, S) where they are tokens, else the activation's
            shape.
        draws: number of different draws.
    """

    number: npt.NDArray[np.int64]
    draws: int

    @classmethod
    def of(cls, hashes: Hashes) -> "Repeats":
        """Return the assignment of rows to draws by equal hashes; `hashes` has the shape of the rows."""
        distinct, number = np.unique(hashes, return_inverse=True)
        return cls(number.reshape(hashes.shape), len(distinct))

    @property
    def any(self) -> bool:
        """Whether any two rows share a draw."""
        return self.draws < self.number.size

    def any_of(self, judged: Mask) -> bool:
        """Return whether any two judged rows share a draw; False if `judged` does not have these rows."""
        rows = as_array(judged.any(tuple(range(self.number.ndim, judged.ndim))))
        return rows.shape == self.number.shape and bool((self.merged(rows) > 1.0).any())

    def merged(self, x: Array | Mask) -> Array:
        """Return the sums of x over the rows of each draw, (draws, …) for x with these rows as its first axes; else x itself."""
        if x.shape[: self.number.ndim] != self.number.shape:
            return as_array(x, np.float64)
        sums = np.zeros((self.draws, *x.shape[self.number.ndim :]))
        np.add.at(sums, self.number, x)
        return sums

    def variance(self, variance: Array, weights: Array) -> float:
        """Return the variance of Σ w · e for errors e of the given variance, equal in rows of the same draw: Σ v (Σ w)²."""
        depth = self.number.ndim
        if not self.any or weights.shape[:depth] != self.number.shape:
            return float(np.vdot(variance * weights, weights))
        wide = np.broadcast_to(variance, weights.shape).reshape(self.number.size, -1)
        sums, kept = (np.zeros((self.draws, wide.shape[1]), like=weights) for _ in range(2))
        np.add.at(sums, self.number.ravel(), weights.reshape(self.number.size, -1))
        kept[self.number.ravel()] = wide
        return float(np.vdot(kept * sums, sums))


repeats_of = once_an_array(Repeats.of)

NOTHING = Repeats(np.zeros((), np.int64), 1)  # every element is a draw of its own


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
