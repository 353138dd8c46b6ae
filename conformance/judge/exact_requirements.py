"""Elements that must be zero, or exactly right, whatever the rounding: why an activation is wrong there, in a sentence.

- Attention probabilities of masked keys are 0.
- A gradient is 0 where no result depends on the element: at padded positions and queries, and at masked keys and encoder states.
- A step without arithmetic, such as a look-up or a copy, has the oracle's result bit for bit.

Numbers below the smallest normal number count as 0, since a device may flush them to 0 or not.
"""

import numpy as np

from conformance.judge.judged_elements import required_zeros, zeroed
from conformance.judge.observation import Block, Observation
from conformance.model.gradients import is_gradient
from conformance.numerics.formats import Format


def violation(observation: Observation, smallest_normal: float) -> str:
    """Return why elements that must be 0 are wrong; empty if they are all 0 or below the smallest normal number.

    If the gradients from which a gradient is computed are already wrong there, its step is not at fault.
    """
    zeros, what = required_zeros(observation.activation, observation.network.table, observation.network.batch)
    if not zeros.any():
        return ""
    wrong = np.broadcast_to(zeros, observation.actual.shape)
    most = np.abs(observation.actual).max(initial=0.0, where=wrong)
    if most >= smallest_normal and is_gradient(observation.name):
        wrong = wrong & (np.abs(observation.whole.segment.value) < smallest_normal)
        most = np.abs(observation.actual).max(initial=0.0, where=wrong)
    if most < smallest_normal:
        return ""
    if is_gradient(observation.name):
        return f"{what} have a gradient, up to {most:.3g}, where they must have none"
    return f"{what} get probability, up to {most:.3g}, where they must get none"


def difference_from_exact(block: Block, storage: Format) -> str:
    """Return how an exact activation differs from its correct value; empty if it does not."""
    differing = zeroed(block.residual, block.judged)
    if not differing.any():
        return ""
    ulps, count = np.abs(differing) / storage.ulp(block.segment.value), int(block.judged.sum())
    # If the error exceeds 2^p ULP in a format with p bits of precision, no digit agrees, and the number of ULP says nothing.
    units = f"{ulps.max():.3g} unit{'' if ulps.max() == 1.0 else 's'} in the last place"
    largest = units if ulps.max() <= 2.0**storage.precision else f"{np.abs(differing).max():.3g}"
    return f"{int((ulps > 0).sum())} of {count} elements differ from the exact result, by up to {largest}; none may differ"
