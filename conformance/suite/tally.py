"""Tally of the checks that a pytest session requested and ran: a session that ran none of those requested fails.

Checks that are deselected, or skipped by one of pytest's own marks, are not counted as requested. Under xdist the workers count,
and the counts are sent with the test reports to the controller, which decides.
"""

import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest

from conformance.suite.pytest_session import Count, taken

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_REASONS = 5  # maximum number of reasons that the summary lists
_KEY = "bert_conformance"  # attribute of a test report that holds its counts


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
