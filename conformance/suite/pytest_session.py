"""State of the current pytest session: examples per search, depth of judgements, the results recording, and the checks that ran.

A session that ran none of the checks that it requested fails. Checks that are deselected, or skipped by one of pytest's own marks,
are not counted as requested. Under xdist the workers count, and what they count is sent with the test reports to the controller,
which decides.
"""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest

from conformance.checks.check import EXAMPLES, Plan
from conformance.judge import Depth

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from conformance.checks.recording import Recording
    from conformance.results.result import Result

_LISTED = 5  # maximum number of reasons, and of mistakes, that the summary lists
_KEY = "bert_conformance"  # attribute of a test report that holds its checks


class Requested(NamedTuple):
    """A check that was requested: whether its candidate supports it, whether it ran, else why not, and the mistakes found."""

    declared: bool
    executed: bool
    why: str = ""
    mistakes: tuple[str, ...] = ()


@dataclass
class _Session:
    """The state of a session.

    Attributes:
        opening: opens the recording; None if results are not recorded.
        recording: the recording, once it is open.
        requested: the checks since they were last taken.
    """

    examples: int = EXAMPLES
    depth: Depth = "full"
    opening: "Callable[[], Recording] | None" = None
    recording: "Recording | None" = None
    requested: list[Requested] = field(default_factory=list)


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
        recording.end(whole=whole)


def plan() -> Plan:
    """Return the session's search plan; examples are drawn from a fixed seed if Hypothesis's profile derandomizes its own."""
    from hypothesis import settings

    return Plan(_sessions[-1].examples, 0 if settings().derandomize else None, _sessions[-1].depth)


def record(result: "Result") -> None:
    """Count a result and add it to the recording, if there is one; raise `ResultsFileError` if that has lost what was written."""
    session = _sessions[-1]
    why = f"{'skipped' if result.outcome == 'skip' else 'could not run'}: {result.reason.partition(chr(10))[0]}"
    mistakes = tuple(finding.sentence for finding in result.findings) if result.outcome == "fail" else ()
    session.requested.append(Requested(result.declared, result.executed, why, mistakes))
    if session.recording is not None:
        from conformance.checks.repro import FAILURES, leave
        from conformance.results.to_records import records_of

        leave(result, session.recording.path.parent / FAILURES)
        session.recording.add(records_of(result))
        session.recording.require_unchanged()


def taken() -> list[Requested]:
    """Return the checks since the last call."""
    found, _sessions[-1].requested = _sessions[-1].requested, []
    return found


class Tally:
    """A pytest plug-in that collects the checks of one session, and summarizes them."""

    def __init__(self) -> None:
        """Start without checks."""
        self._requested: list[Requested] = []

    @property
    def _is_empty(self) -> bool:
        """Whether checks were requested and none ran."""
        return bool(self._requested) and not any(each.executed for each in self._requested)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach to the report the checks that its test ran."""
        report = yield
        requested = taken()
        if not requested and report.when == "call" and report.passed and is_to_check(item):
            requested = [Requested(True, False, "not called by a test that takes its check and passes")]
        setattr(report, _KEY, [tuple(each) for each in requested])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the checks of a report, made in this process or in a worker."""
        self._requested += (Requested(*each) for each in getattr(report, _KEY, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make a session fail that requested checks and ran none, but would otherwise succeed."""
        decides = not hasattr(session.config, "workerinput")
        if decides and self._is_empty and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: "TerminalReporter") -> None:
        """Print each mistake with the number of checks that found it, or that nothing was judged, and why."""
        if self._is_empty:
            declared = sum(each.declared for each in self._requested)
            unsupported = len(self._requested) - declared
            more = f", {unsupported} more not supported by the candidate" if unsupported else ""
            terminalreporter.section("BERT conformance: nothing was judged", red=True, bold=True)
            ran = f"ran 0 / {declared} declared check{'s' * (declared != 1)}{more}"
            terminalreporter.line(f"{ran}; a session that judges nothing fails")
            _list(terminalreporter, Counter(each.why for each in self._requested), "reasons; pytest -rs lists all")
        if mistakes := Counter(mistake for each in self._requested for mistake in each.mistakes):
            terminalreporter.section("BERT conformance: mistakes, with the number of checks that found each", red=True, bold=True)
            _list(terminalreporter, mistakes, "mistakes, which the failures above have")


def _list(terminalreporter: "TerminalReporter", counted: "Counter[str]", what: str) -> None:
    """Print the most frequent texts with their numbers, and how many there are more."""
    for text, number in counted.most_common(_LISTED):
        terminalreporter.line(f"{number} {text}")
    if len(counted) > _LISTED:
        terminalreporter.line(f"and {len(counted) - _LISTED} more {what}")


def is_to_check(item: pytest.Item) -> bool:
    """Return whether a test takes a check."""
    checks = sys.modules.get("conformance.suite.parametrize")  # loaded only if there are checks
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return checks is not None and any(isinstance(value, checks.BoundCheck) for value in parameters.values())
