"""How far checks are to go. Imports nothing heavy: commands and test ids are wanted before anything is searched."""

from dataclasses import dataclass
from typing import Any

from conformance.judge.depth import Depth

EXAMPLES = 20


@dataclass(frozen=True)
class Plan:
    """The extent of searches and judgements.

    Attributes:
        examples: how many are drawn for each check.
        seed: what they are drawn from, the same ones each time; None: others each time.
        database: Hypothesis's, which remembers what failed; or None.
        depth: how far a judgement goes.
    """

    examples: int = EXAMPLES
    seed: int | None = 0
    database: Any = None
    depth: Depth = "full"


USUAL = Plan()
