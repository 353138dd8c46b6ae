"""Runs interrupted at random moments and resumed: `python -m conformance.benchmarks.interruptions [--count N] [--seed S]`.

Each resumed run must end with the records of an uninterrupted run, except records that always differ (times, the measurement of
the machine). The last run is interrupted by a full disk, simulated by a limit on file size, which the system enforces in the same
way.
"""

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from conformance.results.file import read_results

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
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


def resumed(out: Path) -> list[Any]:
    """Resume a run, and return its records."""
    subprocess.run(command(out, "--resume"), capture_output=True, check=False)
    return records(out)


def difference(expected: list[Any], found: list[Any]) -> str:
    """Return a description of the first records that differ; empty if all are equal."""
    if len(expected) != len(found):
        return f"{len(found)} records, expected {len(expected)}"
    return next((f"{b}, expected {a}" for a, b in zip(expected, found, strict=True) if a != b), "")


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
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # The process has ended in the meantime.
            continue
        if int(of) == session and state != "Z":
            found.append(int(file.parent.name))
    return found


def main(show: Callable[[str], object] = print) -> int:
    """Print one line per interruption; return 1 if a resumed run has other records."""
    parser = argparse.ArgumentParser(prog="conformance.benchmarks.interruptions", description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="how many moments (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, wrong = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        expected, seconds = undisturbed(Path(folder) / "whole")
        show(f"undisturbed: {len(expected)} records in {seconds:.1f} s")
        for number in range(arguments.count):
            out, after, how = Path(folder) / str(number), draw.uniform(0.0, seconds), SIGNALS[number % len(SIGNALS)]
            interrupted(out, after, how)
            there = (out / "results.jsonl").read_bytes().count(b'"kind":"check"') if (out / "results.jsonl").exists() else 0
            wrong += bool(other := difference(expected, resumed(out)))
            show(f"{how.name} after {after:.2f} s, {there} checks: resumed to {other or 'the same records'}")
        size = os.path.getsize(Path(folder) / "whole" / "results.jsonl") // 2
        out = Path(folder) / "full"
        on_a_full_disk(out, size)
        wrong += bool(other := difference(expected, resumed(out)))
        show(f"file limited to {size} bytes: resumed to {other or 'the same records'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
