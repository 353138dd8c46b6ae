"""A candidate cannot signal the processes that judge it, nor stop any; where the fork server ends or stops, workers start again."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.errors import CandidateEnded, CandidateTimeout
from conformance.isolation.fork_server import server_id
from conformance.isolation.messages import Reason
from conformance.isolation.worker_process import Reply, ResourceLimits, WorkerProcess
from conformance.results.file import read_results

ENDED = "while it ran, the process that starts all workers was ended, and its own process with it"
REACHING = """
import os, signal, subprocess

def judge():
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

reach = {
    "the fork server is stopped": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "the judge is ended": lambda: os.kill(judge(), signal.SIGKILL),
    "the judge is stopped by a program": lambda: subprocess.run(["kill", "-STOP", str(judge())], check=True),
    "the judge's group is stopped": lambda: os.killpg(os.getpgid(judge()), signal.SIGTSTP),
    "all are reached": lambda: os.kill(-1, 0),
    "it is stopped": lambda: os.kill(os.getpid(), signal.SIGTTIN),
}

class Reaching:
    def __init__(self, name):
        self.name = name

    def prepare(self, checkpoint, device, dtype):
        reach[self.name]()

candidates = [Reaching(name) for name in reach]
c0, c1, c2, c3, c4, c5 = candidates
"""


class Waiting:
    """Work that waits without end if it is asked to."""

    device_loss: str | None = None

    def __init__(self, parameter: Callable[[str], Any]) -> None:
        """Ignore the parameters."""

    def answer(self, question: str) -> Reply:
        if question == "wait":
            signal.pause()
        return Reason(question), ()


def _signal_server(number: int) -> None:
    server = server_id()
    assert server is not None
    os.kill(server, number)


def test_workers_are_replaced_after_the_end_of_the_fork_server_whether_they_are_idle_or_not() -> None:
    with WorkerProcess(Waiting) as idle, WorkerProcess(Waiting) as waiting:
        idle.ask("first")
        waiting.ask("first")
        before = idle.process
        ending = threading.Timer(0.1, lambda: _signal_server(signal.SIGKILL))
        ending.start()
        with pytest.raises(CandidateEnded, match=ENDED):
            waiting.ask("wait")
        ending.join()
        assert idle.process is None
        assert idle.ask("again")[0] == Reason("again")
        assert idle.process is not before
        assert waiting.ask("again")[0] == Reason("again")


def test_a_stopped_fork_server_is_replaced() -> None:
    with WorkerProcess(Waiting, ResourceLimits(seconds=0.5)) as worker, WorkerProcess(Waiting) as other:
        worker.ask("first")
        _signal_server(signal.SIGSTOP)
        with pytest.raises((CandidateEnded, CandidateTimeout)):
            worker.ask("wait")
        worker.renew()
        assert worker.ask("again")[0] == Reason("again")
        assert other.ask("first")[0] == Reason("first")


def test_candidates_that_reach_for_other_processes_are_refused_and_a_run_goes_on(tmp_path: Path) -> None:
    file, out = tmp_path / "reaching.py", tmp_path / "out"
    file.write_text(REACHING)
    count = REACHING.count("lambda:")
    names = [argument for i in range(count) for argument in ("-i", f"{file}:c{i}")]
    command = ["run", *names, "-i", "making-bert", "--golden", "tiny", "--depth", "screen", "--timeout", "100", "--out", str(out)]
    assert main(command) == 1
    *refused, last = read_results(out / "results.jsonl").checks
    assert [(check.outcome, "PermissionError: " in check.reason or "returned non-zero" in check.reason) for check in refused] == [
        ("crash", True)
    ] * count
    assert last.outcome == "pass"
