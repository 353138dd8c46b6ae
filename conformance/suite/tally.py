"""How many checks a pytest session asked for, and how many ran: one that ran none of them is no success, whatever else passed.

What is deselected is not asked for, nor what a mark of pytest's own skips. Under xdist the workers count, and the counts come with
their reports to the controller, which decides.
"""

import sys
from collections.abc import Generator
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest

from conformance.suite.pytest_session import Count, taken

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_KEY = "bert_conformance"  # of a report's attribute


class Tally:
    """A plug-in of one session."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._total = Count()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report the count of what its test has checked."""
        report = yield
        count = taken()
        if not count.asked and report.when == "call" and report.passed and _is_to_check(item):
            count = Count(1, 1, 0, "a test passed that takes its check and does not call it")
        if count.asked:
            setattr(report, _KEY, astuple(count))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a report has counted, here or in a worker."""
        self._total += Count(*getattr(report, _KEY, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that would else be a success."""
        decides = not hasattr(session.config, "workerinput")
        if decides and self._total.is_empty and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: "TerminalReporter") -> None:
        """Say so, and why."""
        if self._total.is_empty:
            terminalreporter.section("BERT conformance: nothing was judged", red=True, bold=True)
            terminalreporter.line(f"ran 0 / {self._total.declared} declared: {self._total.reason}")


def _is_to_check(item: pytest.Item) -> bool:
    checks = sys.modules.get("conformance.suite.parametrize")  # imported only where there are checks
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return checks is not None and any(isinstance(value, checks.BoundCheck) for value in parameters.values())
