"""Runs that are interrupted, by a signal or by a full disk, and their records."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from conformance.results.file import read_results

# The golden's file is smaller than the limit of a full disk, since a checkpoint is read through a copy.
CASES = ("-i", "hf-eager", "-i", "demystified-as-written", "-i", "hf-sdpa", "--golden", "tanh")
_GRACE = 60.0  # Seconds in which a run must end after its signal.


def command(out: Path, *more: str) -> list[str]:
    """Return the command of a run that takes a few seconds and writes to a folder; one of its candidates is skipped."""
    return [sys.executable, "-m", "conformance", "run", *CASES, "--out", str(out), "--format", "json", *more]


def records(out: Path) -> list[Any]:
    """Return the records of a folder's results that are equal for equal runs."""
    results = read_results(out / "results.jsonl")
    assert results.sound, results.notes
    never_the_same = {"seconds": 0.0, "candidate_seconds": 0.0, "judge_seconds": 0.0}
    cases = [{**msgspec.to_builtins(case.check), **never_the_same} for case in results.cases]
    return [*cases, *(msgspec.to_builtins(a) for a in results.activations), msgspec.to_builtins(results.footer)]


def undisturbed(out: Path) -> tuple[list[Any], float]:
    """Return the records of an uninterrupted run, and its duration in seconds."""
    start = time.monotonic()
    subprocess.run(command(out), capture_output=True, check=False)
    return records(out), time.monotonic() - start


def interrupted(out: Path, after: float, how: signal.Signals) -> None:
    """Run the command, and send a signal to its main process alone after `after` seconds, as `kill` does.

    Raises:
        RuntimeError: a process of the run is still alive after `_GRACE` seconds.
    """
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    time.sleep(after)
    process.send_signal(how)
    process.wait(_GRACE)
    require_nothing_left(process.pid)


def on_a_full_disk(out: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run the command with a limit of `size` bytes per file."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(command(out), capture_output=True, text=True, check=False, preexec_fn=limit)


def require_nothing_left(session: int) -> None:
    """Wait until no process of a session is left.

    Raises:
        RuntimeError: a process is left after `_GRACE` seconds.
    """
    end = time.monotonic() + _GRACE
    while left := _of_session(session):
        if time.monotonic() > end:
            raise RuntimeError(f"left running: {left}")
        time.sleep(0.1)


def _of_session(session: int) -> list[int]:
    left = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # The process has ended in the meantime.
            continue
        if int(of) == session and state != "Z":
            left.append(int(file.parent.name))
    return left
