"""How far a judgement goes."""

from typing import Literal, get_args

Depth = Literal["screen", "full"]

DEPTHS: tuple[Depth, ...] = get_args(Depth)

SCREENED = "which mistake it is was not looked for (depth screen)"
