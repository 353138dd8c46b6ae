"""Counts of requested and executed checks in a pytest session; a session that ran none of the requested checks is not a success.

Deselected tests, and tests skipped by pytest's own marks, are not counted as requested. Under xdist the workers count; the counts
are sent with the test reports to the controller, which decides.
"""

import sys
from collections.abc import Generator
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest

from conformance.suite.pytest_session import Count, taken

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_KEY = "bert_conformance"  # name of the attribute added to test reports


class Tally:
    """The pytest plug-in that counts the checks of one session."""

    def __init__(self) -> None:
        """Initialize all counts to 0."""
        self._total = Count()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add to the report the counts of the checks that its test ran."""
        report = yield
        count = taken()
        if not count.asked and report.when == "call" and report.passed and _is_to_check(item):
            count = Count(1, 1, 0, "a test passed that takes its check and does not call it")
        if count.asked:
            setattr(report, _KEY, astuple(count))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the counts of a report from this process or from a worker."""
        self._total += Count(*getattr(report, _KEY, ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Change the exit status of a successful session to failure if checks were requested but none was run."""
        decides = not hasattr(session.config, "workerinput")
        if decides and self._total.is_empty and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: "TerminalReporter") -> None:
        """Report that nothing was judged, with the reason."""
        if self._total.is_empty:
            terminalreporter.section("BERT conformance: nothing was judged", red=True, bold=True)
            terminalreporter.line(f"ran 0 / {self._total.declared} declared: {self._total.reason}")


def _is_to_check(item: pytest.Item) -> bool:
    checks = sys.modules.get("conformance.suite.parametrize")  # imported only if there are checks
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return checks is not None and any(isinstance(value, checks.BoundCheck) for value in parameters.values())
