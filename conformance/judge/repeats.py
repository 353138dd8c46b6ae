"""What repeats: a program gives the same inputs the same roundings, so repeated rows are one draw of noise, not several.

Every [CLS] at position 0 is such a row of the embeddings, and a text that stands in a batch twice is one of every layer; and of a
function of single numbers, each number that stands in several places.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.judge.selection import Mask
from conformance.numerics.formats import Array


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
    def of(cls, leaves: Iterable[Array], shape: tuple[int, ...]) -> "Repeats":
        """Rows, of that leading shape, in which all `leaves` are the same bit for bit."""
        seen: dict[bytes, int] = {}
        flat = [np.ascontiguousarray(leaf).reshape(int(np.prod(shape)), -1) for leaf in leaves]
        numbers = [seen.setdefault(b"".join(part[i].tobytes() for part in flat), len(seen)) for i in range(int(np.prod(shape)))]
        return cls(np.array(numbers, np.int64).reshape(shape), len(seen))

    def share(self, judged: Mask) -> float:
        """Of the rows that are judged, how many are draws of their own; 1 for what has no rows."""
        if judged.shape[: self.number.ndim] != self.number.shape:
            return 1.0
        rows = judged.reshape(*self.number.shape, -1).any(-1)
        return len(np.unique(self.number[rows])) / max(int(rows.sum()), 1)

    def variance(self, variance: Array, weights: Array) -> float:
        """Variance of Σ w · e for errors e of that elementwise variance, the same in rows of the same draw: Σ v (Σ w)²."""
        depth = self.number.ndim
        if self.draws == self.number.size or weights.shape[:depth] != self.number.shape:
            return float(np.vdot(variance * weights, weights))
        wide = np.broadcast_to(variance, weights.shape).reshape(self.number.size, -1)
        sums, kept = (np.zeros((self.draws, wide.shape[1])) for _ in range(2))
        np.add.at(sums, self.number.ravel(), weights.reshape(self.number.size, -1))
        kept[self.number.ravel()] = wide
        return float(np.vdot(kept * sums, sums))
