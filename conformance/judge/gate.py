"""The gate: what shows at a fraction of the cost that every element of a large activation passes the exact test.

The exact test, by residual, sigma and bound, and at full depth by the filters of mistakes, is made of a sample of the tokens, or of
the rows of the batch where tokens interact. Of all elements,

- a linear layer, and its gradients, are verified by projections of the residual (`judge.projections`);
- any other step is evaluated, and its residual is compared with a lower bound of sigma (`Step.least_roundings`). What is within its
  limits in units of this bound is within them in units of sigma.

Where either shows more than rounding, the exact test is made of every element. It alone fails an activation. It is also made where
a mistake explains the sample under an arithmetic by which it fails, and where a filter would be lost: that of a mistake that the
sample cannot tell from rounding, and that every element together could. The z that is expected of a mistake grows as the root of
the number of elements if the sample is typical of them. A mistake that changes no element of the sample is evaluated on every
element: where it changes some by more than their limits, it fails like any other error, and where it changes them by less, its
filter is that of every element (`local_error`). What a pass confirms of a number is what the filter of the sample confirms.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from conformance.judge.evidence import Basis, LocalJudgement
from conformance.judge.judged_array import STATISTICS
from conformance.judge.judged_elements import zeroed
from conformance.judge.observation import SMALL, Observation
from conformance.judge.parts import Part, features_of_gradient, judged_tokens, rows_of
from conformance.judge.projections import is_verified, product_of
from conformance.judge.threads import on_all_cores
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.thresholds import SEPARABLE_Z, Limits

SAMPLED = 32  # one token in so many, or one row of the batch, is tested exactly; it limits the work and is no threshold


def judged_by_gate(
    observation: Observation,
    hypotheses: Sequence[Hypothesis],
    alpha: float,
    judged: Callable[[Observation], Sequence[LocalJudgement]],
) -> tuple[LocalJudgement, ...]:
    """Return the judgement of a sample under each hypothesis; none if every element is to be tested exactly.

    Args:
        observation: the activation.
        hypotheses: the hypotheses. Those under which the sample passes are shown to hold for every element.
        alpha: total false-alarm probability of the activation.
        judged: the exact test, under each hypothesis that is needed; empty if the activation fails.
    """
    if not can_be_gated(observation):
        return ()
    part = judged_tokens(observation) or features_of_gradient(observation) or rows_of(observation)
    sample = sample_of(part)
    share = len(sample.rows) / len(part.rows)
    if share == 1.0:
        return ()
    of_sample = judged(sample.observation)
    by_name = {str(hypothesis): hypothesis for hypothesis in hypotheses}
    passing = [by_name.get(local.hypothesis) for local in of_sample if local.passes]
    if not passing or any(local.explanations or loses_a_mistake(local, share) for local in of_sample):
        return ()
    if not all(hypothesis and is_closed(part, hypothesis, alpha) for hypothesis in passing):
        return ()
    return tuple(_in_whole(local, sample, share, basis_of(part)) for local in of_sample)


def _in_whole(local: LocalJudgement, sample: Part, share: float, basis: Basis) -> LocalJudgement:
    """Return the judgement of a sample as that of the activation, whose likelihood is extrapolated from that of the sample."""
    return replace(sample.in_whole(local), nll=local.nll / share, row_nll=local.row_nll / share, rests_on=basis)


def loses_a_mistake(local: LocalJudgement, share: float) -> bool:
    """Return whether a mistake that this share of the elements does not separate from rounding is separable by all of them."""
    return any(not each.separable and each.expected_z >= SEPARABLE_Z * math.sqrt(share) for each in local.filters)


def can_be_gated(observation: Observation) -> bool:
    """Return whether an activation is large, in memory, without dropout masks, and computed row by row, of the batch or its own."""
    if observation.actual.size <= SMALL or observation.on_device or observation.network.kept:
        return False
    return observation.is_by_row or features_of_gradient(observation) is not None


def sample_of(part: Part) -> Part:
    """Return the ends of a part and, at random, the same in every run, as many others as are left of one in `SAMPLED`."""
    count = len(part.rows)
    drawn = np.random.default_rng(zlib.crc32(part.observation.name.encode())).permutation(count)
    return part.at(np.unique(np.concatenate([part.ends, drawn[: max(-(-count // SAMPLED) - len(part.ends), 0)]])))


def basis_of(part: Part) -> Basis:
    """Return what shows that the elements pass of which the exact test is not made."""
    return "a lower bound of sigma" if product_of(part.observation) is None else "projections"


def is_closed(part: Part, hypothesis: Hypothesis, alpha: float) -> bool:
    """Return whether every element is shown to be within the limits of the exact test under a hypothesis."""
    observation, product = part.observation, product_of(part.observation)
    if product is not None:
        return is_verified(product, hypothesis.arithmetic)
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
