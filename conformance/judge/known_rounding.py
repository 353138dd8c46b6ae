"""The limit of the RMS where results are nearly equal, so that their rounding errors are not independent."""

from dataclasses import replace

import numpy as np

from conformance.judge.noise import of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.judge.sums import LocalSums
from conformance.judge.thresholds import Limits
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array


def limits_with_rounding(
    limits: Limits, rms: float, observation: Observation, hypothesis: Hypothesis, faulty: Segment | None = None
) -> Limits:
    """Return the limits, with a larger one for the RMS if the rounding of the correct results to storage alone exceeds it.

    `thresholds.rms_threshold` takes the rounding errors of different rows as independent. Those of results that are nearly equal
    are not, such as the scores of a sequence whose tokens are all equal; but they are known (`Noise.storing`). A correct candidate
    stores round(y + a), where the variance of its other errors a is σ² less that of one rounding. Its error is the known one, k,
    or, if a moves y beyond the next tie, one of magnitude at most |k| + 2|a|. So RMS(e) ≤ RMS(k) + 2 RMS(a), and RMS(a) is at most
    the threshold times the RMS of its deviation.

    Args:
        limits: the limits for independent errors.
        rms: the RMS of the candidate's errors, in sigma; nothing is computed if it is within its limit.
        observation: the activation.
        hypothesis: the hypothesis under which the errors were measured.
        faulty: the steps with a mistake, if the errors are those of their results.
    """
    if rms <= limits.rms:
        return limits
    block, storage = observation.whole, hypothesis.arithmetic.storage
    segment = faulty or block.segment
    noise = of_segment(segment, hypothesis, block.judged)
    if noise.storing is None:
        return limits

    def rms_of(residual: Array) -> float:
        return LocalSums.of(residual, noise, block.counted).errors.rms

    known = rms_of(noise.storing())
    if known <= limits.rms:
        return limits
    others = np.sqrt(np.maximum(noise.sigma**2 - storage.rounding_variance(segment.value), 0.0))
    return replace(limits, rms=known + 2.0 * limits.rms * rms_of(others))
