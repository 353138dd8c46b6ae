"""The gate of depth screen: what shows at a fraction of the cost that every element of a large activation passes the exact test.

The exact test, by residual, sigma and bound, is made of a sample of the tokens, or of the rows of the batch where tokens interact.
Of all elements,

- a linear layer is verified by projections of its residual (`judge.projections`);
- any other step is evaluated, and its residual is compared with a lower bound of sigma (`Step.least_roundings`). What is within its
  limits in units of this bound is within them in units of sigma.

Where either shows more than rounding, the exact test is made of every element. It alone fails an activation.
"""

import zlib

import numpy as np

from conformance.judge.evidence import Basis
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

SAMPLED = 32  # one token in so many, or one row of the batch, is tested exactly; it limits the work and is no threshold


def can_be_gated(observation: Observation) -> bool:
    """Return whether an activation is large, in memory, without dropout masks, and computed row by row in a forward pass."""
    network = observation.network
    return (
        observation.actual.size > SMALL and not (observation.on_device or network.kept or network.source) and observation.is_by_row
    )


def sample_of(part: Part) -> Part:
    """Return the sample that is tested exactly, the same in every run: of tokens, also the first and last of each row."""
    count = len(part.rows)
    drawn = np.random.default_rng(zlib.crc32(part.observation.name.encode())).permutation(count)[: -(-count // SAMPLED)]
    first = np.flatnonzero(np.diff(part.rows, prepend=-1))
    ends = [] if part.positions is None else [first, first - 1]
    return part.at(np.unique(np.concatenate([drawn, *ends]) % count))


def basis_of(part: Part) -> Basis:
    """Return what shows that the elements pass of which the exact test is not made."""
    is_linear = len(part.observation.steps) == 1 and EQUATIONS[part.observation.activation.kind] is Linear
    return "projections" if is_linear and part.positions is not None else "a lower bound of sigma"


def is_closed(part: Part, hypothesis: Hypothesis, alpha: float) -> bool:
    """Return whether every element is shown to be within the limits of the exact test under a hypothesis."""
    if basis_of(part) == "projections":
        return is_verified(part.observation, hypothesis)
    observation = part.observation
    limits = Limits.of(observation.independent_rows(hypothesis), observation.count, STATISTICS, alpha)

    def totals(rows: slice) -> tuple[float, float, int]:
        block = observation.without_padding(rows)
        variance, bound = block.segment.least_noise(hypothesis)
        error = np.maximum(np.abs(block.residual) - bound, 0.0) if np.any(bound) else block.residual
        with np.errstate(over="ignore"):
            squares = zeroed(np.square(error) / variance, block.judged)
        # Elements that are 0, in both where they must be, are not counted by the exact test.
        return float(squares.sum()), float(squares.max(initial=0.0)), int(np.count_nonzero(zeroed(block.actual, block.judged)))

    sums, largest, counts = zip(*on_all_cores(totals, observation.rows), strict=True)
    is_within = sum(sums) <= max(sum(counts), 1) * limits.rms**2 and max(largest) <= limits.max**2  # NaN is not within
    return bool(is_within)
