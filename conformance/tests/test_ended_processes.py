"""Ends of processes: a candidate cannot signal those that judge it, and leaves no process behind."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import Checkpoint
from conformance.checks.check import Plan, Request
from conformance.checks.run_check import run_check
from conformance.cli import main
from conformance.errors import CandidateCrash, CandidateEnded
from conformance.implementations.making_bert import making_bert
from conformance.isolation import fork_server
from conformance.isolation.fork_server import start_server
from conformance.isolation.link import Failure, Link, NoMessageError, encoded
from conformance.isolation.worker_process import ResourceLimits, WorkerProcess
from conformance.model.batch import Batch
from conformance.results.file import read_results
from conformance.tests.test_isolation import Doing

REACHING = """
import os, signal, subprocess

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def judge():
    return parent(parent(os.getppid()))  # above the fork server and the watcher

reach = {
    "its watcher is stopped": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "the fork server is stopped": lambda: os.kill(parent(os.getppid()), signal.SIGSTOP),
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
c0, c1, c2, c3, c4, c5, c6 = candidates
"""


def _signal_server(number: int) -> None:
    (server,) = fork_server._servers
    server.process.send_signal(number)


def test_after_the_end_of_the_fork_server_running_workers_answer_and_new_ones_are_started() -> None:
    with WorkerProcess(Doing) as before, WorkerProcess(Doing) as after:
        before.asking(Doing.does)("first")
        process = before.process
        _signal_server(signal.SIGKILL)
        assert before.asking(Doing.does)("again") == after.asking(Doing.does)("again") == "again"
        assert before.process is process


def test_a_stopped_fork_server_goes_on_where_a_worker_is_needed() -> None:
    with WorkerProcess(Doing, ResourceLimits(seconds=10.0)) as worker:
        start_server()
        _signal_server(signal.SIGSTOP)
        assert worker.asking(Doing.does)("first") == "first"


@pytest.mark.parametrize("left", ["closed", "dropped"])
def test_a_worker_ends_with_what_it_has_started(left: str, tmp_path: Path) -> None:
    worker = WorkerProcess(Doing)
    worker.asking(Doing.does)(f"leaves {tmp_path / 'left'}")
    pids = (tmp_path / "left").read_text().split()
    assert len(pids) == 2
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    if left == "closed":
        worker.close()
    del worker
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_candidates_that_reach_for_other_processes_are_refused_and_a_run_goes_on(tmp_path: Path) -> None:
    file, out = tmp_path / "reaching.py", tmp_path / "out"
    file.write_text(REACHING)
    count = REACHING.count("lambda:")
    names = [f"{file}:c{i}" for i in range(count)]
    command = ["run", *names, "making-bert", "--golden", "tiny", "--depth", "screen", "--timeout", "100", "-o", str(out)]
    assert main(command) == 1
    *refused, last = read_results(out / "results.jsonl").checks
    assert [(check.outcome, "PermissionError: " in check.reason or "returned non-zero" in check.reason) for check in refused] == [
        ("crash", True)
    ] * count
    assert last.outcome == "pass"


# What the check after the end of a process finds, and messages between the processes.


class Ending:
    """making-bert, which raises what a worker's end raises, where `ends` says so: a function of the batch and of its process."""

    def __init__(self, ends: Callable[[Any, int], bool]) -> None:
        self.ends, self.prepared = ends, 0

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> Any:
        self.prepared += 1
        process, run = self.prepared, making_bert.prepare(checkpoint, device, dtype)

        def called(batch: Any) -> Any:
            if self.ends(batch, process):
                raise CandidateEnded("its process ended")
            return run(batch)

        return called


def test_a_process_that_ended_in_one_law_is_not_asked_in_the_next() -> None:
    candidate = Ending(lambda _, process: process == 1)
    results = [run_check(Request.of(candidate, "tiny", "cpu", "float32", "repeated", plan=Plan(2))) for _ in range(2)]
    assert [(result.outcome, result.reason[:17]) for result in results] == [("crash", "its process ended"), ("pass", "")]


def test_a_process_that_ends_at_a_mask_of_another_dtype_has_not_refused_it() -> None:
    candidate = Ending(lambda batch, _: batch.attention_mask.dtype == torch.bool)
    for examples in (1, 2):
        result = run_check(Request.of(candidate, "tiny", "cpu", "float32", "mask-dtype", plan=Plan(examples)))
        assert (result.outcome, result.reason) == ("crash", "its process ended")


def test_an_error_with_an_odd_text_and_a_batch_is_sent_and_no_other_batch_is_accepted() -> None:
    failure, (ours, theirs) = CandidateCrash("odd \udc80"), map(Link, socket.socketpair())
    failure.batch = Batch.of({"input_ids": [[1, 2]]})
    ours.send(encoded(failure=Failure.of(failure)))
    received = theirs.receive()
    assert received.message.failure
    error: Any = received.message.failure.error(received.arrays)
    assert (str(error), error.batch.input_ids.tolist()) == ("odd \\udc80", [[1, 2]])
    for batch in ({"input_ids": {"array": 7}}, {"input_ids": 3}, [1], {"x": {"array": 0}}):
        with pytest.raises(NoMessageError, match="an error that cannot be one"):
            Failure("CandidateCrash", "", batch).error(received.arrays)
