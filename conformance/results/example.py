"""Examples on which a law is tested, and how the violation of a law is reported.

Examples consist of plain numbers, so that a results file can contain them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.errors import UsageError
from conformance.model.batch import Batch
from conformance.numerics.formats import Array

Size = tuple[int, int]  # of a batch: rows, and tokens per row


def largest_sizes(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Return the sizes that no other size reaches in both numbers, most rows first.

    Example:
        >>> largest_sizes([(1, 64), (6, 16), (6, 15)])
        ((6, 16), (1, 64))
    """
    found: list[Size] = []
    for size in sorted(set(sizes), reverse=True):
        if not found or size[1] > found[-1][1]:
            found.append(size)
    return tuple(found)


@dataclass(frozen=True)
class Example:
    """One batch, and how a law varies it.

    Attributes:
        batch: the inputs.
        variation: parameters of the variation by name: numbers, texts or lists of them.
    """

    batch: Batch
    variation: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the example as for JSON: the batch's arrays as nested lists under `batch`, and `variation`."""
        return {"batch": {k: v.tolist() for k, v in self.batch.arrays().items()}, "variation": dict(self.variation)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Example":
        """Return the example described by the result of `plain`; raises `UsageError` if it does not describe an example."""
        try:
            return cls(Batch.of(plain["batch"]), dict(plain.get("variation", {})))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"an example has a batch and may have a variation; found {plain!r:.200}") from error


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
