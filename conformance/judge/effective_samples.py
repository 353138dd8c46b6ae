"""Repeated rows and elements: a program rounds equal inputs equally, so repetitions are a single draw of noise.

Examples are the embedding of [CLS] at position 0 in every sequence, every layer of a text that occurs twice in a batch, and, for an
elementwise function, each input that occurs at several places.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from conformance.numerics.formats import Array, Captured, Mask, as_array
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
