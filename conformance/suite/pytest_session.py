"""The current pytest run: how far its searches go, the counts of its checks, and where its results are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.checks.search.plan import EXAMPLES, Plan
from conformance.judge.depth import Depth

if TYPE_CHECKING:
    from conformance.checks.recording import Recording
    from conformance.results.result import Result


@dataclass(frozen=True)
class Count:
    """How many checks were asked for, declared (their candidate supports them) and run, and why the first did not that did not."""

    asked: int = 0
    declared: int = 0
    executed: int = 0
    reason: str = ""

    def __add__(self, other: "Count") -> "Count":
        """Both, in this order."""
        return Count(
            self.asked + other.asked,
            self.declared + other.declared,
            self.executed + other.executed,
            self.reason or other.reason,
        )

    @property
    def is_empty(self) -> bool:
        """Whether something was asked for and nothing ran."""
        return self.asked > 0 and not self.executed


_examples = EXAMPLES
_depth: Depth = "full"
_recording: "Recording | None" = None
_count = Count()


def begin(examples: int = EXAMPLES, depth: Depth = "full") -> None:
    """A run begins, with so many examples a search, and judgements of that depth."""
    global _examples, _depth, _recording, _count
    _examples, _depth, _recording, _count = examples, depth, None, Count()


def record_into(recording: "Recording") -> None:
    """What is checked from now on is written down there."""
    global _recording
    _recording = recording


def end(*, whole: bool) -> None:
    """The run is over; a recording of one that was cut short has no footer."""
    if _recording is not None:
        _recording.close(whole=whole)
    begin()


def plan() -> Plan:
    """Hypothesis's own profile says whether each run draws anew, and where failing examples are remembered."""
    from hypothesis import settings

    profile = settings()
    seed, database = (0, None) if profile.derandomize else (None, profile.database)
    return Plan(_examples, seed, database, _depth)


def record(result: "Result", test: Callable[..., Any] | None) -> None:
    """Count a result, and write it down where the run is recorded."""
    global _count
    why = "" if result.executed else result.reason.partition("\n")[0]
    _count += Count(1, int(result.declared), int(result.executed), why)
    if _recording is not None:
        _recording.add(result, test=test)


def taken() -> Count:
    """What has been counted since this was last asked."""
    global _count
    found, _count = _count, Count()
    return found
