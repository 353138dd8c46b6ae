"""The global error: the difference of an activation from the oracle's own forward pass from the token ids, by blocks.

Where the true value is not stored, the global error is propagated from step to step without a second forward pass. With e the
errors of the parents x,

    e_out = (actual − f(x)) + (f(x) − f(x − e)),

which is exact for errors of any size (`Step.effect_of`). The error is stored in float32, because it is small.

At depth `full`, the error of the first rows of a large batch is followed alone, one row in eight.

A passing step has a role in the propagation of the global error: it amplifies the arriving error, attenuates it, or neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from conformance.judge.evidence import Error
from conformance.judge.judged_elements import judged_elements, sums_of_independent_rows, zeroed
from conformance.judge.observation import Block, Observation
from conformance.judge.sums import ErrorSums
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Mask, Single, as_array
from conformance.numerics.thresholds import rms_threshold, smallest_rms


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


def global_error(observation: Observation, sigma: Array, rows: int | None = None) -> GlobalError:
    """Return the global error of an activation.

    Args:
        observation: the activation.
        sigma: the rounding error accumulated since the token ids; broadcasts to the activation.
        rows: number of the batch's first rows that are followed; None for all.
    """
    most = observation.network.batch.size if rows is None else rows
    blocks = (slice(part.start, min(part.stop, most)) for part in observation.rows if part.start < most)
    return reduce(add, (GlobalError.of(observation.block(each), sigma) for each in blocks))


def error_role(block: Block, global_errors: Mapping[str, Single], hypothesis: Hypothesis, alpha: float) -> str | None:
    """Return whether the step is an amplifier or an attenuator of the arriving global error, or None if it is neither.

    It is one if the global error grew or shrank beyond what propagating the arriving error, taken as normal and random, predicts.
    The result is None if no error beyond rounding arrives. The tails are tested at the bounds of `rms_threshold` and
    `smallest_rms`.

    Args:
        block: the rows of the activation whose global error is followed.
        global_errors: the global errors of the activation and of those from which it is computed, by name.
        hypothesis: the hypothesis under which errors are propagated.
        alpha: false-alarm probability of each tail.
    """
    segment, judged = block.segment, block.judged
    arriving = {n: _judged_squares(block, n, global_errors[n]) for n in segment.leaves if n in global_errors}
    if not any(squares.any() for squares in arriving.values()):
        return None
    predicted, local = (_by_row(block, segment.propagate(leaves, hypothesis), judged) for leaves in (arriving, {}))
    actual = _judged_squares(block, segment.name, global_errors[segment.name]).sum()
    if max(actual, predicted.sum()) <= rms_threshold(local, alpha) ** 2 * local.sum() or not predicted.any():
        return None  # indistinguishable from this step's own rounding
    if actual > rms_threshold(predicted, alpha) ** 2 * predicted.sum():
        return "amplifier"
    return "attenuator" if actual < smallest_rms(predicted, alpha) ** 2 * predicted.sum() else None


def _by_row(block: Block, variance: Array, judged: Mask) -> Array:
    """Return the sum of the variances of the judged elements for each independent row."""
    coupled = block.segment.couples_positions
    return np.asarray(sums_of_independent_rows(block.activation, np.where(judged, variance, 0.0), coupled=coupled))


def _judged_squares(block: Block, name: str, error: Single) -> Array:
    """Return the squared global error of an activation, with 0 at elements that are not judged."""
    judged = judged_elements(block.network.table[name], block.network.batch, error.shape)
    return np.square(zeroed(error, judged).astype(np.float64))
