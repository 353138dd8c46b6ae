"""Depth of a judgement.

`screen`      RMS and maximum of each step: pass or fail, and where. In half-precision formats it is less strict than `full`: a
              mistake whose effect lies within the sigma of the widest legal arithmetic in every layer fails only by being named,
              and `screen` names no mistakes.
`full`        filters, explanations and the global error as well.
`exhaustive`  the same, of every element.

At the first two, not every element of a large activation is tested exactly (`judge.gate`), and its global error is that of one row
of the batch in eight.
"""

import math
from typing import Literal, get_args

Depth = Literal["screen", "full", "exhaustive"]

DEPTHS: tuple[Depth, ...] = get_args(Depth)

FEATURES = 32  # of a linear layer that are projected together: the product with a projected weight costs 1/32 of the layer's
OPENED = (
    0.01  # probability that a gate opens for a correct step; the exact test that follows costs some ten times as much as the gate
)
SCREENED = "which mistake it is was not looked for (depth screen)"


def visible_element() -> float:
    """Return the smallest error of a single element that opens a gate of up to a million projections.

    Its unit is the root mean square sigma of the features that are projected together, if their errors do not cancel it.
    """
    from conformance.numerics.thresholds import max_threshold  # imports NumPy, which `--help` and `list` do not need

    return math.sqrt(FEATURES) * max_threshold(10**6, OPENED)
