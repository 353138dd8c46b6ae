"""The role of a passing step in the propagation of the global error: it amplifies the arriving error, attenuates it, or neither."""

from collections.abc import Mapping

import numpy as np

from conformance.judge.judged_elements import count_independent_rows, judged_elements, zeroed
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Single
from conformance.numerics.thresholds import rms_threshold, smallest_rms


def error_role(observation: Observation, global_errors: Mapping[str, Single], hypothesis: Hypothesis, alpha: float) -> str | None:
    """Return whether the step is an amplifier or an attenuator of the arriving global error, or None if it is neither.

    It is one if the global error grew or shrank beyond what propagating the arriving error, taken as normal and random, predicts.
    The result is None if no error beyond rounding arrives. The tails are tested at the bounds of `rms_threshold` and
    `smallest_rms`.

    Args:
        observation: the activation.
        global_errors: the global errors of the activation and of those from which it is computed, by name.
        hypothesis: the hypothesis under which errors are propagated.
        alpha: false-alarm probability of each tail.
    """
    block = observation.whole
    segment, judged = block.segment, block.judged
    arriving = {n: _judged_squares(observation, n, global_errors[n]) for n in segment.leaves if n in global_errors}
    if not any(squares.any() for squares in arriving.values()):
        return None
    predicted = np.where(judged, segment.propagate(arriving, hypothesis), 0.0).sum()
    actual = _judged_squares(observation, observation.name, global_errors[observation.name]).sum()
    local = np.where(judged, segment.propagate({}, hypothesis), 0.0).sum()
    rows = count_independent_rows(
        observation.activation, observation.network.batch, observation.heads, coupled=segment.couples_positions
    )
    limit = rms_threshold(rows, alpha) ** 2
    if max(actual, predicted) <= limit * local or predicted == 0.0:
        return None  # indistinguishable from this step's own rounding
    if actual > limit * predicted:
        return "amplifier"
    return "attenuator" if actual < smallest_rms(rows, alpha) ** 2 * predicted else None


def _judged_squares(observation: Observation, name: str, error: Single) -> Array:
    """Return the squared global error of an activation, with 0 at elements that are not judged."""
    judged = judged_elements(observation.network.table[name], observation.network.batch, error.shape)
    return np.square(zeroed(error, judged).astype(np.float64))
