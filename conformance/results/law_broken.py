"""How a law is reported to be broken, and where."""

from dataclasses import dataclass

from conformance.model.batch import Batch
from conformance.numerics.formats import Array

Values = dict[str, Array]


@dataclass(frozen=True)
class Run:
    """A batch, and what the candidate made of it.

    Attributes:
        batch: the inputs.
        values: the activations, by name.
        mask: the dtype of the mask that was handed over, where it was not the batch's own int64.
        afresh: whether the candidate was prepared anew before it.
    """

    batch: Batch
    values: Values
    mask: str = ""
    afresh: bool = False


@dataclass(frozen=True)
class Location:
    """An element that is not the same in two runs, or not what it must be: where it is in each, and its two values."""

    activation: str
    first: tuple[int, ...]
    second: tuple[int, ...]
    values: tuple[float, float]

    def __str__(self) -> str:
        """As a sentence's subject and verb."""
        there = "" if self.first == self.second else f" at {list(self.second)}"
        return f"{self.activation}{list(self.first)} is {self.values[0]:.9g}, and {self.values[1]:.9g}{there} in the other run"


class LawBroken(Exception):
    """A law does not hold.

    Attributes:
        reason: how, in words.
        excess: by how many times its limit, where that is a number.
        place: where.
        runs: what was run, in that order; a place is one of the first and the last.
        watch: what is not to change while the first is run, as a Python expression of `runner`, `batch`, `torch` and `np`.
        claim: what is to be true of `runner` by itself, as a Python expression, where it is no matter of a run.
        raises: whether the last run was to raise, and did not.
        script: lines of Python that show it, of `candidate`, where it is no matter of runs.
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
        """Hold what is known."""
        super().__init__(reason)
        self.reason, self.runs, self.place, self.excess = reason, runs, place, excess
        self.watch, self.script, self.raises, self.claim = watch, script, raises, claim

    @property
    def allowed(self) -> float:
        """The difference at that place that would be at the limit; 0 where nothing may differ."""
        if self.place is None or not self.excess:
            return 0.0
        a, b = self.place.values
        return abs(a - b) / self.excess
