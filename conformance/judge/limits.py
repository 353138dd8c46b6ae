"""The limits of the statistics of one activation."""

from dataclasses import replace

import numpy as np

from conformance.judge.effective_samples import Hashes
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import of_segment
from conformance.judge.observation import Observation
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.thresholds import Limits

STATISTICS = 2  # RMS and largest error
DEVIATES, WEIGHTS = np.polynomial.hermite_e.hermegauss(5)  # five abscissas of the normal distribution
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def limits_of(observation: Observation, hypothesis: Hypothesis, hashes: Hashes, filters: int, alpha: float) -> Limits:
    """Return the limits of RMS and largest error, and of the filters, for rounding errors that are independent between rows.

    Args:
        observation: the activation.
        hypothesis: the hypothesis.
        hashes: hashes of the rows (`Segment.hashes`).
        filters: number of filters, with which RMS and largest error share alpha.
        alpha: total false-alarm probability of the activation.
    """
    rows = observation.independent_rows(hypothesis, hashes)
    return Limits.of(rows, observation.count, STATISTICS + filters, alpha)


def limits_for(
    rms: float, limits: Limits, observation: Observation, hypothesis: Hypothesis, faulty: Segment | None = None
) -> Limits:
    """Return the limits by which an RMS is judged: a larger one if results are so nearly equal that their errors are not random.

    The rounding errors of nearly equal results, such as the scores of equal tokens, are nearly equal. They are known: a correct
    candidate stores round(y + a), with the errors a that it makes before, whose deviation is that of the accumulation format. The
    limit is multiplied by the root of the mean over all elements of E (round(y + a) − y)²/σ², if that is more than 1. It is about 1
    for results that are spread over an ulp or more.

    Args:
        rms: the RMS of the candidate's errors, in sigma; nothing is computed if it is within its limit.
        limits: the limits for independent errors.
        observation: the activation; several steps, or a format in which results are accumulated, have no larger limit.
        hypothesis: the hypothesis under which the errors were measured.
        faulty: the step with a mistake, if the errors are those of its result.
    """
    arithmetic = hypothesis.arithmetic
    if rms <= limits.rms or not (arithmetic.is_mixed and hypothesis.parents == "as captured"):
        return limits
    block = observation.whole
    segment = faulty or block.segment
    if not segment.is_single_step:
        return limits
    step = segment.steps[segment.name]
    before = np.sqrt(step.roundings(replace(arithmetic, storage=arithmetic.accumulate)).variance())
    errors = (step.stored(arithmetic, deviate * before) - step.value for deviate in DEVIATES)
    squares = sum(weight * error**2 for weight, error in zip(WEIGHTS, errors, strict=True))
    scaled = zeroed(squares / of_segment(segment, hypothesis, block.judged).sigma ** 2, block.judged)
    return replace(limits, rms=limits.rms * max(1.0, float(np.sqrt(scaled.sum() / np.count_nonzero(block.counted)))))
