"""The global error: the difference of an activation from the oracle's own forward pass from the token ids, by blocks.

Where the true value is not stored, the global error is propagated from step to step without a second forward pass. With e the
errors of the parents x,

    e_out = (actual − f(x)) + (f(x) − f(x − e)),

which is exact for errors of any size (`Step.effect_of`). The error is stored in float32, because it is small.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.evidence import Error
from conformance.judge.judged_elements import zeroed
from conformance.judge.observation import Block
from conformance.judge.sums import ErrorSums
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array, Single


@dataclass(frozen=True, eq=False)
class GlobalError:
    """The global error of an activation or of one block of it.

    Attributes:
        error: the global error, including padded positions, because a candidate may attend to them.
        sums: statistics of the global error over the judged elements, in units of the accumulated sigma.
        has_sigma: whether the accumulated sigma is positive anywhere.
    """

    error: Single
    sums: ErrorSums
    has_sigma: bool

    @classmethod
    def of(cls, block: Block, sigma: Array) -> "GlobalError":
        """Return the global error of a block; `sigma` broadcasts to the block's array."""
        error = block.error.astype(np.float32)
        judged = zeroed(error, block.judged)
        precision = np.divide(1.0, sigma, out=np.zeros(sigma.shape), where=sigma > 0)
        scaled = as_array(judged * precision, np.float64)
        return cls(error, ErrorSums.of(scaled, int(block.judged.sum()), judged, block.first), bool(np.any(sigma)))

    def __add__(self, other: "GlobalError") -> "GlobalError":
        """Return the global error of both blocks, concatenated along the batch."""
        error = np.concatenate([self.error, other.error])
        return GlobalError(error, self.sums + other.sums, self.has_sigma)

    @property
    def summary(self) -> Error:
        """RMS and maximum of the global error in sigma; for exact activations, the largest difference alone."""
        return self.sums.error if self.has_sigma else self.sums.exact
