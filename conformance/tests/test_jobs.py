"""A run in several processes gives the records of a run in one, and is resumed like it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance import Checkpoint
from conformance.cli.interrupts import Interrupt, raise_lost_interrupt, raised_interrupts
from conformance.errors import INTERRUPTED, ConformanceError
from conformance.model.files import scratch_folder
from conformance.results.file import read_results
from conformance.results.records import Results
from conformance.tests.commands import FAILING, Command
from conformance.tests.terminal import as_in_a_terminal

RUN = ["run", "hf-eager", FAILING, "--golden", "tiny", "--in-process"]
CHECKS = [part for name in ("values", "outputs", "repeated", "called-again") for part in ("--check", name)] + ["--examples", "3"]


def _content(results: Results) -> list[tuple[object, ...]]:
    return [
        (c.check.implementation, c.check.check, c.check.outcome, c.check.reason, str(c.check.worst), len(c.activations))
        for c in results.cases
    ]


def test_what_is_refused_is_printed_once_and_earlier_results_are_kept(tmp_path: Path, command: Command) -> None:
    (tmp_path / "results.jsonl").write_text("earlier")
    ended = command("run", "no-such-candidate", "--jobs", "2", "-o", tmp_path)
    assert (ended.code, ended.err.count("no-such-candidate")) == (2, 1)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("results.jsonl", "earlier")]


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT to a thread of a process other than its main thread, as a system may deliver it, and as it wakes no lock there.

    Where threads have no ids in the file system, it is sent to the process.
    """
    threads = Path(f"/proc/{process.pid}/task")
    others = [int(thread.name) for thread in threads.iterdir() if int(thread.name) != process.pid] if threads.is_dir() else []
    if others:
        os.kill(others[0], signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)


def test_an_interrupted_run_of_two_processes_is_resumed_to_the_records_of_one_in_the_same_order(
    tmp_path: Path, command: Command
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    in_one = command(*RUN, *CHECKS, "-o", one)
    in_two = [sys.executable, "-m", "conformance", *RUN, *CHECKS, "--jobs", "2", "-o", str(two)]
    process = subprocess.Popen(in_two, stderr=subprocess.PIPE, env=os.environ, preexec_fn=as_in_a_terminal)
    results = two / "results.jsonl"
    while process.poll() is None and not (results.exists() and b'"kind":"check"' in results.read_bytes()):
        time.sleep(0.05)
    _interrupt(process)
    _, errors = process.communicate()
    assert (process.returncode, b"Traceback" in errors) == (INTERRUPTED, False), errors
    assert b"the same command with --resume runs the rest" in errors
    before = results.read_bytes()
    resumed = command(*in_two[3:], "--resume")
    assert (resumed.code, len(resumed.out.splitlines())) == (in_one.code, len(in_one.out.splitlines()))
    assert in_one.code == 1
    assert results.read_bytes().startswith(before)  # What was complete was not run again.
    found, expected = (read_results(folder / "results.jsonl") for folder in (two, one))
    assert (_content(found), found.footer) == (_content(expected), expected.footer)
    assert {p.name for p in (two / "failures").iterdir()} == {p.name for p in (one / "failures").iterdir()}
    assert {p.name for p in two.iterdir()} == {"results.jsonl", "report.html", "failures"}


class _Finalized:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finalizer_discards_is_raised_at_the_end_of_the_case() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with raised_interrupts():
            raise_lost_interrupt()
            _Finalized()
            with pytest.raises(Interrupt):
                raise_lost_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def _signalled(first: int, others: Sequence[int], folders: list[Path]) -> None:
    """Raise signals, the others while the first one's interrupt is handled, with a temporary folder."""
    with raised_interrupts():
        folders.append(scratch_folder())
        (folders[0] / "model.safetensors").touch()
        try:
            signal.raise_signal(first)
        finally:
            for other in others:
                signal.raise_signal(other)


@pytest.mark.parametrize(
    "names", [("SIGTERM",), ("SIGHUP",), ("SIGQUIT",), ("SIGINT",), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGHUP")]
)
def test_every_signal_that_ends_a_command_interrupts_it_and_its_temporary_folders_are_removed(names: Sequence[str]) -> None:
    first, *others = (getattr(signal, name) for name in names)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (first, *others)}
    try:
        folders: list[Path] = []
        with pytest.raises(Interrupt) as interrupt:
            _signalled(first, others, folders)
        assert interrupt.value.exit_code == 128 + (others or [first])[-1]
        assert not folders[0].exists()
        assert signal.getsignal(first) == signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raised_interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def ending(checkpoint: Checkpoint, device: str, dtype: str) -> None:
    """End the process that computes the result."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_ended_is_no_success_and_what_was_complete_is_kept(tmp_path: Path, command: Command) -> None:
    run = ["run", "hf-eager", f"{__name__}:ending", "--golden", "tiny", "--depth", "screen", "--in-process"]
    ended = command(*run, "--jobs", "2", "-o", tmp_path)
    assert (ended.code, "a process that computes results has ended; " in ended.err) == (ConformanceError.exit_code, True)
    assert {check.implementation for check in read_results(tmp_path / "results.jsonl").checks} <= {"hf-eager"}
