"""What repeats: a program gives the same inputs the same roundings, so repeated rows are one draw of noise, not several.

Every [CLS] at position 0 is such a row of the embeddings, and a text that stands in a batch twice is one of every layer; and of a
function of single numbers, each number that stands in several places.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.judge.selection import Mask
from conformance.numerics.formats import Array, Captured

Hashes = npt.NDArray[np.uint64]


def hashed(values: Captured, depth: int) -> Hashes:
    """A hash of each row's bits; rows are of the first `depth` axes. Numbers of at most 32 bits come in float32.

    Σ h_k b_k modulo 2^64 over the row's words b, h odd multiples of 2^64 divided by the golden ratio (Knuth 1998, section 6.4).
    Rows that differ have the same one with a probability of 2^-64, or 2^-48 in half formats, whose words end in sixteen zeros.
    """
    rows = values.reshape(*values.shape[:depth], -1)
    if rows.dtype == np.float32 and rows.shape[-1] % 2:
        rows = np.concatenate([rows, np.zeros_like(rows[..., :1])], -1)
    bits = np.ascontiguousarray(rows).view(np.uint64)
    factors = (2 * np.arange(bits.shape[-1], dtype=np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((bits * factors).sum(-1, dtype=np.uint64))


@dataclass(frozen=True)
class Repeats:
    """Which rows are the same draw.

    Attributes:
        number: of the draw, a row or element each; (B,) where rows are sequences, (B, S) where tokens are, else as the activation.
        draws: how many different ones there are.
    """

    number: npt.NDArray[np.int64]
    draws: int

    @classmethod
    def of(cls, hashes: Hashes) -> "Repeats":
        """Rows of equal hashes, in an array of the rows' shape."""
        distinct, number = np.unique(hashes, return_inverse=True)
        return cls(number.reshape(hashes.shape), len(distinct))

    @property
    def any(self) -> bool:
        """Whether any two are the same."""
        return self.draws < self.number.size

    def share(self, judged: Mask) -> float:
        """Of the rows that are judged, how many are draws of their own; 1 for what has no rows."""
        if judged.shape[: self.number.ndim] != self.number.shape:
            return 1.0
        rows = judged.reshape(*self.number.shape, -1).any(-1)
        return len(np.unique(self.number[rows])) / max(int(rows.sum()), 1)

    def variance(self, variance: Array, weights: Array) -> float:
        """Variance of Σ w · e for errors e of that elementwise variance, the same in rows of the same draw: Σ v (Σ w)²."""
        depth = self.number.ndim
        if not self.any or weights.shape[:depth] != self.number.shape:
            return float(np.vdot(variance * weights, weights))
        wide = np.broadcast_to(variance, weights.shape).reshape(self.number.size, -1)
        sums, kept = (np.zeros((self.draws, wide.shape[1])) for _ in range(2))
        np.add.at(sums, self.number.ravel(), weights.reshape(self.number.size, -1))
        kept[self.number.ravel()] = wide
        return float(np.vdot(kept * sums, sums))


NOTHING = Repeats(np.zeros((), np.int64), 1)  # every element is a draw of its own
