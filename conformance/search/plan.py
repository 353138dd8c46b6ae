"""How a search is to be made. Imports nothing heavy: commands and test ids are wanted before anything is searched."""

from dataclasses import dataclass
from typing import Any

EXAMPLES = 20


@dataclass(frozen=True)
class Plan:
    """The extent of a search.

    Attributes:
        examples: how many are drawn for each check.
        seed: what they are drawn from, the same ones each time; None: others each time.
        database: Hypothesis's, which remembers what failed; or None.
    """

    examples: int = EXAMPLES
    seed: int | None = 0
    database: Any = None


USUAL = Plan()
