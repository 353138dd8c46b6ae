"""Work in a process of its own: what hangs is ended, what ends the process has crashed, and the next question is answered."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import check, load_golden
from conformance.cli import main
from conformance.errors import CandidateCrash, CandidateTimeout, ConformanceError, FixtureError
from conformance.isolation.process import Limits, WorkerProcess
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.serve import CandidateWork
from conformance.progress import report_progress, watched


class Doing:
    """Does what the question says."""

    is_whole = True

    def __init__(self, parameter: Callable[[str], Any]) -> None:
        self.parameter = parameter

    def answer(self, question: str) -> object:
        report_progress("at work", 0.5)
        match question:
            case "hangs":
                time.sleep(600.0)
            case "dies":
                os._exit(3)
            case "writes":
                sys.stdout.write("out ")
                os.write(2, b"err " * 100_000)
            case "breaks the device":
                self.is_whole = False
            case "answers by an array":
                return self.parameter("x") * 2.0
            case "writes where answers are sent":
                for number in range(3, 100):
                    try:
                        os.write(number, b"\0\0\0\4junk")
                    except OSError:
                        continue
        return question


def _not_ready(parameter: object) -> Doing:
    raise LookupError("there is no such work")


def _came_of(worker: WorkerProcess, question: str) -> object:
    worker.renew()
    try:
        return worker.ask(question)
    except ConformanceError as error:
        return error


def test_a_process_that_hangs_or_ends_is_reported_and_questions_before_and_after_are_answered() -> None:
    heard = []
    with WorkerProcess(Doing, Limits(seconds=1.0)) as there, watched(lambda what, done: heard.append((what, done))):
        works, hangs, dies, again = [_came_of(there, question) for question in ("works", "hangs", "dies", "works")]
    assert works == again == "works"
    assert isinstance(hangs, CandidateTimeout)
    assert str(hangs) == "it had not come to an end after 1 s"
    assert isinstance(dies, CandidateCrash)
    assert str(dies) == "it ended the process that it ran in (exit code 3)"
    assert heard == [("at work", 0.5)] * 4


def test_arrays_go_both_ways_large_and_small() -> None:
    with WorkerProcess(Doing) as there:
        for array in (np.ones(3), np.arange(50_000.0).reshape(100, 500), np.empty((0, 4)), np.asfortranarray(np.eye(200))):
            np.testing.assert_array_equal(there.ask("answers by an array", {"x": array}), 2.0 * array)


def test_what_it_writes_is_shown_up_to_its_limit() -> None:
    shown: list[str] = []
    with WorkerProcess(Doing, Limits(output=1000), shown.append) as there:
        there.ask("writes")
    text = "".join(shown)
    assert "out " in text
    assert text.endswith("\n… what it writes from here on is not shown\n")
    assert len(text) < 1100


def test_after_a_device_is_broken_a_new_process_answers() -> None:
    with WorkerProcess(Doing) as there:
        there.ask("works")
        first = there.process
        there.ask("breaks the device")
        assert there.process is None
        assert there.ask("works") == "works"
        assert there.process is not first


def test_what_a_candidate_writes_where_answers_are_sent_is_its_crash() -> None:
    with WorkerProcess(Doing, Limits(seconds=10.0)) as there:
        assert isinstance(_came_of(there, "writes where answers are sent"), CandidateCrash | CandidateTimeout)
        assert _came_of(there, "works") == "works"


def test_work_that_cannot_be_made_ready_is_nobodys_crash() -> None:
    with WorkerProcess(_not_ready) as there, pytest.raises(FixtureError, match="could not be made ready"):
        there.ask("works")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_candidate_in_a_worker_is_judged_as_one_here(dtype: str) -> None:
    here = check("hf-eager", "tiny", dtype=dtype)
    with WorkerProcess(CandidateWork) as worker:
        there = check(RemoteCandidate(worker, "hf-eager"), "tiny", dtype=dtype)
    assert there.verdicts == here.verdicts
    assert there.outcome == "pass"


def test_an_activation_is_read_before_the_next_one_is_asked_for() -> None:
    golden = load_golden("tiny")
    with WorkerProcess(CandidateWork) as worker:
        runner = RemoteCandidate(worker, "hf-eager").prepare(golden.checkpoint, "cpu", "float32")
        (_, first), (name, second), *_ = runner(golden.batches["padded"].on("cpu"))
        with pytest.raises(CandidateCrash):
            first.read()
        del name, second


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "soon"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--timeout", seconds])
    assert ended.value.code == 2
    assert "is no number of seconds above 0" in capsys.readouterr().err


def test_a_process_leaves_the_network_where_the_system_allows_it_whoever_runs_it() -> None:
    code = (
        "import os, sys, socket, encodings.idna; from conformance.isolation.confinement import leave_network\n"
        "if sys.argv[1] == 'nobody': os.setgid(65534); os.setuid(65534)\n"
        "user = os.getuid(); left = leave_network(); assert os.getuid() == user or not left\n"
        "names = [name for _, name in socket.if_nameindex()]; assert not left or names == ['lo'], names\n"
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname(), 5).close()\n"
    )
    for user in ("same", *(["nobody"] if os.getuid() == 0 else [])):
        done = subprocess.run([sys.executable, "-c", code, user], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
