"""The global error: an activation against the oracle's own forward pass from the token ids, by blocks.

Where the truth is not stored it travels from step to step, with no second forward pass: with e the errors of the parents x,

    e_out = (actual − f(x)) + (f(x) − f(x − e)),

exactly, however large they are (`Step.moved_by`). It is kept in float32, being a small number to begin with.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.evidence import Error
from conformance.judge.observation import Block
from conformance.judge.selection import zeroed
from conformance.judge.sums import ErrorSums
from conformance.numerics.formats import Array, Single


@dataclass(frozen=True, eq=False)
class GlobalError:
    """Of an activation or a block of it.

    Attributes:
        error: the global error, at padding too: a candidate may attend to it.
        sums: what it comes to where it is judged, in what rounding adds up to.
        padded: the largest local difference where nothing is judged.
        has_sigma: whether rounding adds up to anything.
    """

    error: Single
    sums: ErrorSums
    padded: float
    has_sigma: bool

    @classmethod
    def of(cls, block: Block, sigma: Array) -> "GlobalError":
        """Of a block; `sigma` broadcasts to it."""
        everywhere = bool(block.judged.all())
        error = block.error.astype(np.float32)
        judged = zeroed(error, block.judged)
        precision = np.divide(1.0, sigma, out=np.zeros(sigma.shape), where=sigma > 0)
        scaled = np.asarray(judged * precision, np.float64)
        padded = 0.0 if everywhere else float(np.abs(block.residual).max(initial=0.0, where=~block.judged))
        return cls(error, ErrorSums.of(scaled, error.size, judged, block.first), padded, bool(np.any(sigma)))

    def __add__(self, other: "GlobalError") -> "GlobalError":
        """Both blocks."""
        error = np.concatenate([self.error, other.error])
        return GlobalError(error, self.sums + other.sums, max(self.padded, other.padded), self.has_sigma)

    @property
    def summary(self) -> Error:
        """Its RMS and largest values."""
        return self.sums.error if self.has_sigma else self.sums.exact
