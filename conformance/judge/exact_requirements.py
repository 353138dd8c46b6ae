"""Elements that must be finite, zero, or exactly right, whatever the rounding: why an activation is wrong there, in a sentence.

- Elements that are not finite may be due to the attention mask, or to an overflow of wrong inputs.
- Attention probabilities of masked keys are 0.
- A gradient is 0 where no result depends on the element: at padded positions and queries, and at masked keys and encoder states.
- A step without arithmetic, such as a look-up or a copy, has the oracle's result bit for bit.

Numbers below the smallest normal number count as 0, since a device may flush them to 0 or not.
"""

import math

import numpy as np

from conformance.judge.judged_elements import judged_elements, required_zeros, zeroed
from conformance.judge.observation import Block, Observation
from conformance.judge.segment import Segment
from conformance.model.activation import Activation
from conformance.model.batch import Batch
from conformance.model.gradients import is_gradient
from conformance.numerics.formats import Format, Mask


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


_INVERTED = (
    ": all of the sequences without padding, and nothing else, as an inverted mask (mask-inverted) leaves it. It hides every key "
    "of these, and the softmax of −∞ alone is NaN; 1 in attention_mask means that a key is attended to"
)
_PRODUCT = (
    ": all of it, as a mask leaves it that is added as (1 − mask) · −∞. At keys with mask 1 this is 0 · −∞, which is NaN; use the "
    "format's lowest number, or `masked_fill`"
)


def mask_that_explains(activation: Activation, batch: Batch, places: Mask) -> str:
    """Return the end of a sentence on the mask that explains which values are not finite; empty if none does.

    A softmax over keys that are all hidden by −∞ is NaN: with an inverted mask, in the sequences without padding. A mask explains
    no gradient, since the forward pass before it is finite.

    Args:
        activation: the first activation that is not finite.
        batch: the batch.
        places: the elements that are not finite, in the activation's shape.
    """
    if activation.layer is None or activation.axes[:1] != ("batch",) or is_gradient(activation.name):
        return ""
    axes = tuple(range(1, places.ndim))
    judged = judged_elements(activation, batch, places.shape)
    found = places & judged
    sequences, rows = found.any(axes), judged.any(axes)
    if not np.array_equal(found, judged & found.any(axes, keepdims=True)):  # a part of some sequences
        return ""
    keys = batch.states_mask[:, None] if "state key" in activation.axes else batch.keys
    unpadded = keys.all((1, 2)) & rows
    if np.array_equal(unpadded, rows):
        return ""
    if np.array_equal(sequences, rows):
        return _PRODUCT if activation.kind == "probs" else ""
    return _INVERTED if np.array_equal(sequences, unpadded) else ""


def is_overflow_of_inputs(segment: Segment, places: Mask, storage: Format) -> bool:
    """Return whether the float64 result of the captured inputs exceeds the format's range at all of these places.

    The product of query and key may be stored before it is divided by √d, so scores overflow if √d times the scores does.

    Args:
        segment: the segment of the activation.
        places: the judged elements that are not finite in the candidate.
        storage: storage format of the candidate.
    """
    activation = segment.network.table[segment.name]
    factor = math.sqrt(segment.network.architecture.head_size) if activation.kind == "scores" else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = storage.round(np.asarray(segment.value) * factor)
    return not bool(np.isfinite(rounded[places]).any())
