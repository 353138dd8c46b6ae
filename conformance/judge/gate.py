"""The gate: what shows at a fraction of the cost that every element of a large activation passes the exact test.

The exact test, by residual, sigma and bound, and at full depth by the filters of mistakes, is made of a sample of the tokens, or of
the rows of the batch where tokens interact. Of all elements,

- a linear layer is verified by projections of its residual (`judge.projections`);
- any other step is evaluated, and its residual is compared with a lower bound of sigma (`Step.least_roundings`). What is within its
  limits in units of this bound is within them in units of sigma.

Where either shows more than rounding, the exact test is made of every element. It alone fails an activation. It is also made where
a filter would be lost: that of a mistake that the sample cannot tell from rounding, and that every element together could. The z
that is expected of a mistake grows as the root of the number of elements. A mistake that changes no element of the sample has no
filter; where it changes elements by more than their limits, it fails like any other error.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from conformance.judge.depth import Depth
from conformance.judge.evidence import Basis, LocalJudgement
from conformance.judge.judged_elements import zeroed
from conformance.judge.limits import STATISTICS
from conformance.judge.observation import SMALL, Observation
from conformance.judge.parts import Part, judged_tokens, whole
from conformance.judge.projections import is_verified
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z, Limits
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.linear import Linear

# One token in so many, or one row of the batch, is tested exactly; it limits the work and is no threshold.
SAMPLED = {"screen": 32, "full": 32}


def judged_by_gate(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    depth: Depth,
    judged: Callable[[Observation], Sequence[LocalJudgement]],
) -> tuple[LocalJudgement, ...]:
    """Return the judgement of a sample under each hypothesis; none if every element is to be tested exactly.

    Args:
        observation: the activation.
        hypotheses: the hypotheses. Those under which the sample passes are shown to hold for every element.
        alpha: total false-alarm probability of the activation.
        depth: depth of the judgement.
        judged: the exact test, under each hypothesis that is needed.
    """
    if depth == "exhaustive" or not can_be_gated(observation):
        return ()
    part = judged_tokens(observation) or whole(observation)
    sample = sample_of(part, SAMPLED[depth])
    share = len(sample.rows) / len(part.rows)
    if share == 1.0:
        return ()
    found = judged(sample.observation)
    by_name = {str(hypothesis): hypothesis for hypothesis in hypotheses}
    passing = [by_name.get(local.hypothesis) for local in found if local.passes]
    if not passing or any(loses_a_mistake(local, share) for local in found):
        return ()
    if not all(hypothesis and is_closed(part, hypothesis, alpha) for hypothesis in passing):
        return ()
    return tuple(_in_whole(local, sample, share, basis_of(part)) for local in found)


def _in_whole(local: LocalJudgement, sample: Part, share: float, basis: Basis) -> LocalJudgement:
    """Return the judgement of a sample as that of the activation, whose likelihood is extrapolated from that of the sample."""
    explanations = tuple(replace(each, nll=each.nll / share) for each in local.explanations)
    return replace(sample.in_whole(local), nll=local.nll / share, explanations=explanations, rests_on=basis)


def loses_a_mistake(local: LocalJudgement, share: float) -> bool:
    """Return whether a mistake that this share of the elements does not separate from rounding is separable by all of them."""
    return any(not each.separable and each.expected_z >= SEPARABLE_Z * math.sqrt(share) for each in local.filters)


def can_be_gated(observation: Observation) -> bool:
    """Return whether an activation is large, in memory, without dropout masks, and computed row by row in a forward pass."""
    network = observation.network
    return (
        observation.actual.size > SMALL and not (observation.on_device or network.kept or network.source) and observation.is_by_row
    )


def sample_of(part: Part, each: int) -> Part:
    """Return one in `each`, the same in every run, to be tested exactly.

    Of tokens, the first and last of each row are added; of rows, the least and the most padded are the first that are taken.
    """
    count = len(part.rows)
    drawn = np.random.default_rng(zlib.crc32(part.observation.name.encode())).permutation(count)
    if part.positions is None:
        lengths = part.observation.network.batch.mask.sum(1)
        ends = np.unique([lengths.argmin(), lengths.argmax()])
        return part.at(np.unique(np.concatenate([ends, drawn[: max(-(-count // each) - len(ends), 0)]])))
    first = np.flatnonzero(np.diff(part.rows, prepend=-1))
    return part.at(np.unique(np.concatenate([drawn[: -(-count // each)], first, first - 1]) % count))


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
        error = np.abs(block.residual)
        if np.any(bound):
            error -= bound
            np.maximum(error, 0.0, out=error)
        with np.errstate(over="ignore"):
            np.square(error, out=error)
            error /= variance
        if not block.judged.all():
            error = zeroed(error, block.judged)
        # Elements that are 0, in both where they must be, are not counted by the exact test.
        return float(error.sum()), float(error.max(initial=0.0)), int(np.count_nonzero(zeroed(block.actual, block.judged)))

    sums, largest, counts = zip(*on_all_cores(totals, observation.rows), strict=True)
    is_within = sum(sums) <= max(sum(counts), 1) * limits.rms**2 and max(largest) <= limits.max**2  # NaN is not within
    return bool(is_within)
