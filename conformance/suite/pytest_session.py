"""State of the current pytest session: examples per search, depth of judgements, counts of checks, and the results recording."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.checks.check import EXAMPLES, Plan
from conformance.judge.depth import Depth

if TYPE_CHECKING:
    from conformance.checks.recording import Recording
    from conformance.results.result import Result


@dataclass(frozen=True)
class Count:
    """Counts of checks.

    Attributes:
        asked: number of checks requested.
        declared: number of those that the candidate supports.
        executed: number of those that ran.
        reasons: why each check that did not run did not, such as `skipped: REASON`.
    """

    asked: int = 0
    declared: int = 0
    executed: int = 0
    reasons: tuple[str, ...] = ()

    def __add__(self, other: "Count") -> "Count":
        """Return the sums of both counts, with the reasons of both."""
        return Count(
            self.asked + other.asked,
            self.declared + other.declared,
            self.executed + other.executed,
            (*self.reasons, *other.reasons),
        )

    @property
    def is_empty(self) -> bool:
        """Whether checks were requested and none ran."""
        return self.asked > 0 and not self.executed

    def __str__(self) -> str:
        """Return `ran 0 / 2 declared checks`, and how many more are not supported by their candidates."""
        unsupported = self.asked - self.declared
        more = f", {unsupported} more not supported by the candidate" if unsupported else ""
        return f"ran {self.executed} / {self.declared} declared check{'s' * (self.declared != 1)}{more}"


@dataclass
class _Session:
    """The state of a session.

    Attributes:
        examples: number of examples per search.
        depth: depth of judgements.
        opening: opens the recording; None if results are not recorded.
        recording: the recording, once it is open.
        count: counts of the checks since they were last taken.
    """

    examples: int = EXAMPLES
    depth: Depth = "full"
    opening: "Callable[[], Recording] | None" = None
    recording: "Recording | None" = None
    count: Count = Count()


_sessions = [_Session()]  # The last one is the current one: a test may run a session within its own, as pytest's `pytester` does.


def begin(examples: int, depth: Depth, opening: "Callable[[], Recording] | None") -> None:
    """Begin a session with this number of examples per search, this depth of judgements, and how to open its recording, if any."""
    _sessions.append(_Session(examples, depth, opening))


def start_recording() -> None:
    """Open the recording of the session, before its first check; do nothing if it is open or there is none."""
    session = _sessions[-1]
    if session.recording is None and session.opening is not None:
        session.recording = session.opening()


def end(*, whole: bool) -> None:
    """End the session and continue the one around it; unless it is `whole`, its recording gets no footer."""
    recording = _sessions.pop().recording
    if recording is not None:
        recording.close(whole=whole)


def plan() -> Plan:
    """Return the session's search plan; Hypothesis's profile determines the seed and the database of failing examples."""
    from hypothesis import settings

    profile = settings()
    seed, database = (0, None) if profile.derandomize else (None, profile.database)
    return Plan(_sessions[-1].examples, seed, database, _sessions[-1].depth)


def record(result: "Result") -> None:
    """Count a result and add it to the recording, if there is one; raise `ResultsFileError` if that has lost what was written."""
    session = _sessions[-1]
    how, reason = "skipped" if result.outcome == "skip" else "could not run", result.reason.partition("\n")[0]
    why = () if result.executed else (f"{how}: {reason}",)
    session.count += Count(1, int(result.declared), int(result.executed), why)
    if session.recording is not None:
        session.recording.add(result)
        session.recording.require_unchanged()


def taken() -> Count:
    """Return the counts since the last call, and reset them."""
    found, _sessions[-1].count = _sessions[-1].count, Count()
    return found
