"""How the violation of a law is reported, and where it occurs."""

import math
from dataclasses import dataclass

from conformance.model.batch import Batch
from conformance.numerics.formats import Array

Values = dict[str, Array]


@dataclass(frozen=True)
class Run:
    """A batch, and the candidate's activations for it.

    Attributes:
        batch: the inputs.
        values: the activations by name.
        mask: dtype in which the mask was passed, if not the batch's own int64; otherwise empty.
        afresh: whether the candidate was prepared anew for this run.
    """

    batch: Batch
    values: Values
    mask: str = ""
    afresh: bool = False


@dataclass(frozen=True)
class Location:
    """An element that differs between two runs or from its required value: its index in each run, and the two values."""

    activation: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    values: tuple[float, float]

    def __str__(self) -> str:
        """Return a sentence without its final period."""
        there = "" if self.first == self.second else f" at {list(self.second)}"
        return f"{self.activation}{list(self.first)} is {self.values[0]:.9g}, and {self.values[1]:.9g}{there} in the other run"


class LawBroken(Exception):
    """A law does not hold.

    Attributes:
        reason: explanation in words.
        excess: ratio of the violation to its limit, if it is a number.
        place: the differing element, or None; its indices refer to the first and the last run.
        runs: the runs, in order.
        watch: Python expression in `runner`, `batch`, `torch` and `np` whose value must not change during the first run.
        claim: Python expression in `runner` that must be true, for a law that does not concern runs.
        raises: whether the last run should have raised an exception but did not.
        script: lines of Python, in terms of `candidate`, that show the violation, for a law that does not concern runs.
    """

    def __init__(
        self,
        reason: str,
        runs: tuple[Run, ...] = (),
        place: Location | None = None,
        excess: float | None = None,
        watch: str = "",
        script: tuple[str, ...] = (),
        raises: bool = False,
        claim: str = "",
    ) -> None:
        """Initialize the exception with what is known of the violation."""
        super().__init__(reason)
        self.reason, self.runs, self.place, self.excess = reason, runs, place, excess
        self.watch, self.script, self.raises, self.claim = watch, script, raises, claim

    @property
    def allowed(self) -> float:
        """The largest allowed difference between the two values at that place; 0 if they must be equal."""
        if self.place is None or not self.excess:
            return 0.0
        a, b = self.place.values
        return abs(a - b) / self.excess


def beyond_rounding(excess: float) -> str:
    """Return in words the ratio of a difference to its limit; it is infinite where no operation rounds, so that the limit is 0."""
    return "nothing may differ there" if math.isinf(excess) else f"{excess:.3g} times what rounding explains"
