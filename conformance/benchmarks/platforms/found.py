"""The result of a lane, and what each of its cases counts as."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.benchmarks.platforms.case import Ran
from conformance.benchmarks.platforms.lanes import Lane

PASSED, SAME, REDUCED, UNSUPPORTED, ALARM, MISSED = "passed", "same bits", "reduced", "unsupported", "false alarm", "missed"
"""A pass; a pass by an earlier lane's verdict on the same bits; recognised as reduced precision, where it is; a skip; a failure of
a correct candidate; and a pass of a product that is not the earlier lanes', where the setting reduces it."""

WRONG = (ALARM, MISSED)
PLAIN = "highest"


@dataclass(frozen=True)
class Found:
    """The result of a lane.

    Attributes:
        lane: which.
        lacking: why it was not run; empty where it was.
        capability: the instruction set that torch's own kernels took.
        reduces: whether a float32 product was computed in less than float32.
        notes: what the machine's functions exceed the table by, in words.
        ran: the cases, in order.
    """

    lane: Lane
    lacking: str = ""
    capability: str = ""
    reduces: bool = False
    notes: Sequence[str] = ()
    ran: tuple[Ran, ...] = ()

    def kind(self, ran: Ran) -> str:
        """What the case counts as."""
        lowered = self.lane.precision != PLAIN and self.reduces and ran.dtype == "float32" and not ran.same_as
        if ran.outcome == "skip":
            return UNSUPPORTED
        if ran.outcome != "pass":
            return REDUCED if lowered and ran.reduced else ALARM
        if ran.same_as:
            return SAME
        return MISSED if lowered else PASSED

    @property
    def counts(self) -> Mapping[str, int]:
        """How many cases are of each kind."""
        return Counter(self.kind(ran) for ran in self.ran)

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.counts[kind] for kind in WRONG)


class Judged:
    """What was judged so far, by case and digest."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._found: dict[str, list[Ran]] = {}

    def of(self, candidate: str, golden: str, dtype: str) -> list[Ran]:
        """The verdicts on that case, each of other bits."""
        return self._found.get(Ran(candidate, golden, dtype, "").case, [])

    def keep(self, lane: Lane, ran: Ran) -> None:
        """Remember a verdict that the lane came to."""
        if ran.digest and not ran.same_as:
            self._found.setdefault(ran.case, []).append(replace(ran, same_as=lane.name))
