"""Cases in a process of their own: what hangs is ended, what ends the process has crashed, and the next one runs."""

import os
import time
from dataclasses import dataclass

import pytest

from conformance.cli import main
from conformance.cli.worker import Limits, WorkerProcess
from conformance.errors import FixtureError
from conformance.progress import report_progress, watched
from conformance.results.case import Case
from conformance.results.result import Result


@dataclass(frozen=True)
class Doing:
    """Does what the candidate of a case is called."""

    is_whole = True

    def answer(self, case: Case) -> Result:
        if case.implementation == "hangs":
            time.sleep(600.0)
        if case.implementation == "dies":
            os._exit(3)
        report_progress("at work", 0.5)
        return Result(case, "pass", executed=True)


def _not_ready() -> Doing:
    raise LookupError("there is no such work")


def test_a_case_that_hangs_or_ends_its_process_is_told_and_others_run_before_and_after() -> None:
    heard = []
    with WorkerProcess(Doing, Limits(seconds=1.0)) as there, watched(lambda what, done: heard.append((what, done))):
        results = [there.result(Case(name, "tiny")) for name in ("works", "hangs", "dies", "works")]
    assert [r.outcome for r in results] == ["pass", "timeout", "crash", "pass"]
    assert [r.exit_code for r in results] == [0, 1, 1, 0]
    assert results[1].reason == "it had not come to an end after 1 s"
    assert results[2].reason == "it ended the process that it ran in (exit code 3)"
    assert heard == [("at work", 0.5)] * 2


def test_work_that_cannot_be_made_ready_is_nobodys_crash() -> None:
    with WorkerProcess(_not_ready) as there, pytest.raises(FixtureError, match="could not be made ready"):
        there.result(Case("works", "tiny"))


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "soon"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--timeout", seconds])
    assert ended.value.code == 2
    assert "is no number of seconds above 0" in capsys.readouterr().err
