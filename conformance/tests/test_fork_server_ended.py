"""A candidate that ends the process from which workers are forked fails; workers of other candidates are started again."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.errors import CandidateEnded
from conformance.isolation.messages import Reason
from conformance.isolation.worker_process import Reply, WorkerProcess
from conformance.results.file import read_results

ENDED = "while it ran, the process that starts all workers was ended, and its own process with it"
KILLER = """
import os, signal

def mine(checkpoint, device, dtype):
    os.kill(os.getppid(), signal.{signal})
    signal.pause()  # the signal may take effect later than this function would take to return
"""


class Killing:
    """Work that ends its parent process if it is asked to."""

    device_loss: str | None = None

    def __init__(self, parameter: Callable[[str], Any]) -> None:
        """Ignore the parameters."""

    def answer(self, question: str) -> Reply:
        if question == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        return Reason(question), ()


def test_the_worker_that_ends_the_fork_server_fails_and_an_idle_worker_is_replaced() -> None:
    with WorkerProcess(Killing) as idle, WorkerProcess(Killing) as killer:
        idle.ask("first")
        before = idle.process
        with pytest.raises(CandidateEnded, match=ENDED):
            killer.ask("kill")
        assert idle.process is None
        assert idle.ask("again")[0] == Reason("again")
        assert idle.process is not before
        assert killer.ask("again")[0] == Reason("again")


@pytest.mark.landing(signal_name="SIGKILL")
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_other_candidates_of_a_run_are_judged(signal_name: str, tmp_path: Path) -> None:
    file, out = tmp_path / "killer.py", tmp_path / "out"
    file.write_text(KILLER.format(signal=signal_name))
    names = ["-i", "making-bert", "-i", f"{file}:mine", "-i", "hf-eager"]
    assert main(["run", *names, "--golden", "tiny", "--out", str(out)]) == 1
    outcomes = {c.implementation: (c.outcome, c.reason) for c in read_results(out / "results.jsonl").checks}
    assert outcomes["making-bert"][0] == outcomes["hf-eager"][0] == "pass"
    assert outcomes[f"{file}:mine"] == ("crash", ENDED)
