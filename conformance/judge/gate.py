"""The gate of depth screen: what shows at a fraction of the cost that every element of a large activation passes the exact test.

The exact test, of residual, sigma and bound of every element, is made of a sample of the tokens, or of the rows of the batch where tokens
interact. Of all elements,

- a linear layer is verified by projections of its residual (`judge.projections`);
- any other step is evaluated, and its residual is compared with a lower bound of sigma (`Step.least_roundings`). What is within its
  limits in units of this bound is within them in units of sigma.

Where either shows more than rounding, the exact test is made of every element. It alone fails an activation.
"""

import zlib

import numpy as np

from conformance.judge.judged_elements import zeroed
from conformance.judge.limits import STATISTICS
from conformance.judge.observation import SMALL, Observation
from conformance.judge.parts import Part
from conformance.judge.projections import is_verified
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.thresholds import Limits
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.linear import Linear

SAMPLED = 32  # one token, or row of the batch, in so many is tested exactly: an exact product of these costs less than the layer itself


def sample_of(part: Part) -> Part:
    """Return the sample that is tested exactly, the same for every run: of tokens, also the first and last of each row."""
    count = len(part.rows)
    drawn = np.random.default_rng(zlib.crc32(part.observation.name.encode())).permutation(count)[: -(-count // SAMPLED)]
    first = np.flatnonzero(np.diff(part.rows, prepend=-1))
    ends = np.concatenate([first, first - 1]) % count if part.positions is not None else first[:0]
    return part.at(np.unique(np.concatenate([drawn, ends])))


def can_be_gated(observation: Observation) -> bool:
    """Return whether an activation is large, in memory, without dropout masks, and computed row by row in a forward pass."""
    network = observation.network
    return (
        observation.actual.size > SMALL
        and not (observation.on_device or network.kept or network.source)
        and observation.is_by_row
    )


def is_closed(part: Part, hypothesis: Hypothesis, alpha: float) -> bool:
    """Return whether every element is shown to be within the limits of the exact test under a hypothesis."""
    observation = part.observation
    if len(observation.steps) == 1 and EQUATIONS[observation.activation.kind] is Linear:
        return part.positions is not None and is_verified(observation, hypothesis)
    rows = observation.independent_rows(hypothesis)
    limits = Limits.of(rows, observation.count, STATISTICS, alpha)

    def totals(rows: slice) -> tuple[float, float, int]:
        block = observation.without_padding(rows)
        variance, bound = block.segment.least_noise(hypothesis)
        squares = block.residual
        if np.any(bound):
            squares = np.maximum(np.abs(squares) - bound, 0.0)
        squares = zeroed(np.square(squares) / variance, block.judged)
        return float(squares.sum()), float(squares.max(initial=0.0)), int(np.count_nonzero(zeroed(block.actual, block.judged)))

    found = np.array(on_all_cores(totals, observation.rows))
    squares, _, count = found.sum(0)
    return bool(squares <= max(count, 1) * limits.rms**2 and found[:, 1].max() <= limits.max**2)  # NaN is not within
