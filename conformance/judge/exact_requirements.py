"""Elements that must be zero, or exactly right, whatever the rounding: why an activation is wrong there, in a sentence.

- Attention probabilities of masked keys are 0.
- A gradient is 0 where no result depends on the element: at padded positions and queries, and at masked keys and encoder states.
- A step without arithmetic, such as a look-up or a copy, has the oracle's result bit for bit.

Numbers below the smallest normal number count as 0, since a device may flush them to 0 or not.
"""

import numpy as np

from conformance.judge.judged_elements import zeroed
from conformance.judge.observation import Block, Observation
from conformance.model.attention import attended_keys
from conformance.model.gradients import SUFFIX, is_gradient
from conformance.numerics.formats import Format, Mask

_PROBABILITIES = ("probs", "copy", "dropout")  # kinds of attention probabilities, with their dropout


def violation(observation: Observation, smallest_normal: float) -> str:
    """Return why elements that must be 0 are wrong; empty if they are all 0 or below the smallest normal number."""
    return _of_masked_keys(observation, smallest_normal) or _of_unread_elements(observation, smallest_normal)


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


def _of_masked_keys(observation: Observation, smallest_normal: float) -> str:
    """Return why masked attention probabilities are wrong; empty if they are all 0 or below the smallest normal number."""
    batch = observation.network.batch
    if observation.activation.kind != "probs" or (keys := attended_keys(observation.activation, batch)).all():
        return ""
    masked = np.broadcast_to((batch.mask[:, :, None] & ~keys)[:, None], observation.actual.shape)
    leak = np.abs(observation.actual).max(initial=0.0, where=masked)
    if leak < smallest_normal:
        return ""
    return f"masked keys get probability, up to {leak:.3g}, where they must get none"


def _of_unread_elements(observation: Observation, smallest_normal: float) -> str:
    """Return why a gradient is wrong at elements on which no result depends; empty if it is 0 at all of them.

    If the gradients from which it is computed are already wrong there, the step is not at fault.
    """
    if not is_gradient(observation.name):
        return ""
    unread, what = _unread(observation)
    if not unread.any():
        return ""
    unread = np.broadcast_to(unread, observation.actual.shape)
    if np.abs(observation.actual).max(initial=0.0, where=unread) < smallest_normal:
        return ""
    wrong = unread & (np.abs(observation.whole.segment.value) < smallest_normal)
    most = np.abs(observation.actual).max(initial=0.0, where=wrong)
    return "" if most < smallest_normal else f"{what} have a gradient, up to {most:.3g}, where they must have none"


def _unread(observation: Observation) -> tuple[Mask, str]:
    """Return the elements of an activation on which no result depends, as an array that broadcasts to it, and their name.

    They are those of padded positions, of masked encoder states, of padded queries and, in attention scores, of masked keys. A
    probability is 0 at a masked key, but results depend on it.
    """
    row, batch = observation.activation, observation.network.batch
    if "query" in row.axes:
        of = observation.network.table.get(row.name.removesuffix(SUFFIX), row)
        read = batch.mask[:, :, None] & (attended_keys(row, batch) | (of.kind in _PROBABILITIES))
        return ~read[:, None] if "head" in row.axes else ~read[..., None], "padded queries or masked keys"
    if "state" in row.axes:
        return ~batch.states_mask[:, :, None], "masked encoder states"
    if "position" in row.axes:
        return ~batch.mask[:, :, None], "padded positions"
    return np.zeros((), np.bool_), ""
