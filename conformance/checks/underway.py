"""The pytest run that is under way: how far its searches go, and where its results are written down, as its options say."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conformance.search.plan import EXAMPLES, Plan

if TYPE_CHECKING:
    from conformance.recording import Recording
    from conformance.result import Result

_examples = EXAMPLES
_recording: "Recording | None" = None


def begin(examples: int) -> None:
    """A run begins, with so many examples a search."""
    global _examples, _recording
    _examples, _recording = examples, None


def record_into(recording: "Recording") -> None:
    """What is checked from now on is written down there."""
    global _recording
    _recording = recording


def end(*, whole: bool) -> None:
    """The run is over; a recording of one that was cut short has no footer."""
    if _recording is not None:
        _recording.close(whole=whole)
    begin(EXAMPLES)


def plan() -> Plan:
    """Hypothesis's own profile says whether each run draws anew, and where failing examples are remembered."""
    from hypothesis import settings

    profile = settings()
    return Plan(_examples, 0) if profile.derandomize else Plan(_examples, None, profile.database)


def record(result: "Result", test: Callable[..., Any] | None) -> None:
    """Write a result down, where the run is recorded."""
    if _recording is not None:
        _recording.add(result, test=test)
