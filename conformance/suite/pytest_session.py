"""State of the current pytest session: examples per search, depth of judgements, the results recording, and the tally of checks.

A session that ran none of the checks that it requested fails. Checks that are deselected, or skipped by one of pytest's own marks,
are not counted as requested. Under xdist the workers count, and the counts are sent with the test reports to the controller, which
decides.
"""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import pytest

from conformance.checks.check import EXAMPLES, Plan
from conformance.judge import Depth

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from conformance.checks.recording import Recording
    from conformance.results.result import Result

_REASONS = 5  # maximum number of reasons that the summary lists
_KEY = "bert_conformance"  # attribute of a test report that holds its counts


@dataclass(frozen=True)
class Count:
    """The numbers of checks that were requested (`asked`), that their candidates support (`declared`), and that ran (`executed`).

    `reasons` says why each check that did not run did not, such as `skipped: REASON`.
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
        recording.end(whole=whole)


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
        from conformance.checks.repro import FAILURES, leave
        from conformance.results.to_records import records_of

        leave(result, session.recording.path.parent / FAILURES)
        session.recording.add(records_of(result))
        session.recording.require_unchanged()


def taken() -> Count:
    """Return the counts since the last call, and reset them."""
    found, _sessions[-1].count = _sessions[-1].count, Count()
    return found


class Tally:
    """A pytest plug-in that counts the checks of one session."""

    def __init__(self) -> None:
        """Start with empty counts."""
        self._total = Count()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach to the report the counts of the checks that its test ran."""
        report = yield
        count = taken()
        if not count.asked and report.when == "call" and report.passed and is_to_check(item):
            count = Count(1, 1, 0, ("not called by a test that takes its check and passes",))
        if count.asked:
            setattr(report, _KEY, astuple(count))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the counts of a report, made in this process or in a worker."""
        self._total += Count(*getattr(report, _KEY, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make a session fail that requested checks and ran none, but would otherwise succeed."""
        decides = not hasattr(session.config, "workerinput")
        if decides and self._total.is_empty and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: "TerminalReporter") -> None:
        """Print that nothing was judged, so that the session fails, and the reasons, each with the number of its checks."""
        if self._total.is_empty:
            terminalreporter.section("BERT conformance: nothing was judged", red=True, bold=True)
            terminalreporter.line(f"{self._total}; a session that judges nothing fails")
            reasons = Counter(self._total.reasons).most_common()
            for reason, number in reasons[:_REASONS]:
                terminalreporter.line(f"{number} {reason}")
            if len(reasons) > _REASONS:
                terminalreporter.line(f"and {len(reasons) - _REASONS} more reasons; pytest -rs lists all")


def is_to_check(item: pytest.Item) -> bool:
    """Return whether a test takes a check."""
    checks = sys.modules.get("conformance.suite.parametrize")  # loaded only if there are checks
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return checks is not None and any(isinstance(value, checks.BoundCheck) for value in parameters.values())
