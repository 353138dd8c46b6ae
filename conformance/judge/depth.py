"""How far a judgement goes.

`screen`    RMS and largest error of each step: pass or fail, and where. In half formats it is less strict than `full`: a mistake
            that the widest legal arithmetic's sigma covers in every layer fails by its name alone, which is not looked for.
`full`      filters, names and the global error as well.
"""

from typing import Literal, get_args

Depth = Literal["screen", "full"]

DEPTHS: tuple[Depth, ...] = get_args(Depth)

SCREENED = "which mistake it is was not looked for (depth screen)"
