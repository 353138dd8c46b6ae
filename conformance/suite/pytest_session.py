"""The state of the current pytest run: the extent of its searches, the counts of its checks, and its results file."""

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
    """Counts of checks.

    Attributes:
        asked: checks that were requested.
        declared: checks that are counted as declared, since their candidate supports them.
        executed: checks that were run.
        reason: why the first check that was not run was not run.
    """

    asked: int = 0
    declared: int = 0
    executed: int = 0
    reason: str = ""

    def __add__(self, other: "Count") -> "Count":
        """Return the sums of the counts; the reason of the left operand takes precedence."""
        return Count(
            self.asked + other.asked,
            self.declared + other.declared,
            self.executed + other.executed,
            self.reason or other.reason,
        )

    @property
    def is_empty(self) -> bool:
        """Whether checks were requested but none was run."""
        return self.asked > 0 and not self.executed


_examples = EXAMPLES
_depth: Depth = "full"
_recording: "Recording | None" = None
_count = Count()


def begin(examples: int = EXAMPLES, depth: Depth = "full") -> None:
    """Start a run with the given number of examples per search and the given depth of judgement."""
    global _examples, _depth, _recording, _count
    _examples, _depth, _recording, _count = examples, depth, None, Count()


def record_into(recording: "Recording") -> None:
    """Write the results of the following checks to `recording`."""
    global _recording
    _recording = recording


def end(*, whole: bool) -> None:
    """Finish the run; a recording is closed without a footer unless the run is complete."""
    if _recording is not None:
        _recording.close(whole=whole)
    begin()


def plan() -> Plan:
    """Return the plan of the searches.

    Hypothesis's current profile determines whether every run generates new examples, and where failing examples are stored.
    """
    from hypothesis import settings

    profile = settings()
    seed, database = (0, None) if profile.derandomize else (None, profile.database)
    return Plan(_examples, seed, database, _depth)


def record(result: "Result", test: Callable[..., Any] | None) -> None:
    """Count a result, and write it to the results file if there is one."""
    global _count
    why = "" if result.executed else result.reason.partition("\n")[0]
    _count += Count(1, int(result.declared), int(result.executed), why)
    if _recording is not None:
        _recording.add(result, test=test)


def taken() -> Count:
    """Return the counts since the last call and reset them."""
    global _count
    found, _count = _count, Count()
    return found
