"""The extent of checks; imports are light because commands and test ids need this module before any search."""

from dataclasses import dataclass
from typing import Any

from conformance.judge.depth import Depth

EXAMPLES = 20


@dataclass(frozen=True)
class Plan:
    """The extent of searches and judgements.

    Attributes:
        examples: the number of examples per check.
        seed: the seed of the drawn examples; None to draw different examples on each run.
        database: a Hypothesis example database, which stores failing examples; or None.
        depth: the depth of a judgement, `full` or `screen`.
        shared: the number of examples among which the false-alarm probability is shared, if that is more than `examples`: those of
            the search that found an example which is tried again.
    """

    examples: int = EXAMPLES
    seed: int | None = 0
    database: Any = None
    depth: Depth = "full"
    shared: int = 0


USUAL = Plan()
