"""Depth of a judgement.

`screen`    RMS and maximum of each step: pass or fail, and where. In half-precision formats it is less strict than `full`: a
            mistake whose effect lies within the sigma of the widest legal arithmetic in every layer fails only by being named, and
            `screen` names no mistakes.
`full`      filters, explanations and the global error as well.
"""

from typing import Literal, get_args

Depth = Literal["screen", "full"]

DEPTHS: tuple[Depth, ...] = get_args(Depth)

SCREENED = "which mistake it is was not looked for (depth screen)"
NO_PATTERN = "no pattern that was looked for accounts for the error"
