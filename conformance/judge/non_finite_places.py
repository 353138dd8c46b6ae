"""What the places of values that are not finite say of the attention mask that may have made them.

Elsewhere they may be an overflow of wrong inputs: the correct result is beyond the range of the format.
"""

import math

import numpy as np

from conformance.judge.judged_elements import judged_elements
from conformance.judge.segment import Segment
from conformance.model.activation import Activation
from conformance.model.batch import Batch
from conformance.model.gradients import is_gradient
from conformance.numerics.formats import Format, Mask

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
