"""Overflow caused by wrong inputs: an activation whose correct result is beyond the range of its format."""

import math

import numpy as np

from conformance.judge.segment import Segment
from conformance.numerics.formats import Format, Mask


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
