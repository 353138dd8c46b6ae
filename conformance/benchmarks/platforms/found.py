"""The result of a lane, and the kind of each of its cases."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.benchmarks.platforms.case import Ran
from conformance.benchmarks.platforms.lanes import Lane

PASSED, SAME, REDUCED, UNSUPPORTED, ALARM, MISSED = "passed", "same bits", "reduced", "unsupported", "false alarm", "missed"
"""The kinds of cases, in order: a pass; a pass by an earlier lane's verdict on the same bits; a failure recognized as reduced
precision, where precision is reduced; a skip; a failure of a correct candidate; and a pass of a product whose bits differ from
those of the earlier lanes, under a setting that reduces precision."""

WRONG = (ALARM, MISSED)
PLAIN = "highest"


@dataclass(frozen=True)
class Found:
    """The result of a lane.

    Attributes:
        lane: the lane.
        lacking: why it was not run; empty if it was.
        capability: instruction set of torch's own kernels.
        reduces: whether float32 products were computed in less than float32 precision.
        notes: sentences on how the machine's functions exceed the table.
        ran: the cases, in order.
    """

    lane: Lane
    lacking: str = ""
    capability: str = ""
    reduces: bool = False
    notes: Sequence[str] = ()
    ran: tuple[Ran, ...] = ()

    def kind(self, ran: Ran) -> str:
        """Return the kind of a case."""
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
        """The number of cases of each kind."""
        return Counter(self.kind(ran) for ran in self.ran)

    @property
    def holds(self) -> bool:
        """Whether no case is wrong."""
        return not any(self.counts[kind] for kind in WRONG)


class Judged:
    """The verdicts so far, by case and digest."""

    def __init__(self) -> None:
        """Start without verdicts."""
        self._found: dict[str, list[Ran]] = {}

    def of(self, candidate: str, golden: str, dtype: str) -> list[Ran]:
        """Return the verdicts on a case, each of which has different bits."""
        return self._found.get(Ran(candidate, golden, dtype, "").case, [])

    def keep(self, lane: Lane, ran: Ran) -> None:
        """Save a verdict of a lane."""
        if ran.digest and not ran.same_as:
            self._found.setdefault(ran.case, []).append(replace(ran, same_as=lane.name))
