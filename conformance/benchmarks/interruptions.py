"""Runs that are cut short at random moments and resumed: `python -m conformance.benchmarks.interruptions [--count N] [--seed S]`.

Each ends with the records of a run that nothing disturbed; what differs by nature (times, the machine's measurement) is left out.
The last one is cut short by a full disk: a limit of the file's size, which the system enforces in the same way.
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
CASES = ("-i", "hf-eager", "-i", "demystified-as-written", "-i", "hf-sdpa", "--golden", "tiny")
_GRACE = 60.0  # seconds for the end of a run after its signal


def command(out: Path, *more: str) -> list[str]:
    """A run of some seconds into a folder; one candidate of it fails."""
    return [sys.executable, "-m", "conformance", "run", *CASES, "--out", str(out), "--format", "json", *more]


def records(out: Path) -> list[Any]:
    """Of a folder's results, what two runs of the same things have in common."""
    results = read_results(out / "results.jsonl")
    assert results.sound, results.notes
    never_the_same = {"seconds": 0.0, "candidate_seconds": 0.0, "judge_seconds": 0.0}
    cases = [{**msgspec.to_builtins(case.check), **never_the_same} for case in results.cases]
    return [*cases, *(msgspec.to_builtins(a) for a in results.activations), msgspec.to_builtins(results.footer)]


def undisturbed(out: Path) -> tuple[list[Any], float]:
    """The records of a whole run, and how many seconds it took."""
    start = time.monotonic()
    subprocess.run(command(out), capture_output=True, check=False)
    return records(out), time.monotonic() - start


def interrupted(out: Path, after: float, how: signal.Signals) -> None:
    """A run that is sent a signal after so many seconds, alone, as `kill` does; nothing of it is left."""
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    time.sleep(after)
    process.send_signal(how)
    process.wait(_GRACE)
    require_nothing_left(process.pid)


def on_a_full_disk(out: Path, size: int) -> subprocess.CompletedProcess[str]:
    """A run whose files can have so many bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.run(command(out), capture_output=True, text=True, check=False, preexec_fn=limit)


def resumed(out: Path) -> list[Any]:
    """The records once the run has been resumed."""
    subprocess.run(command(out, "--resume"), capture_output=True, check=False)
    return records(out)


def difference(expected: list[Any], found: list[Any]) -> str:
    """The first records that differ; an empty text where none do."""
    if len(expected) != len(found):
        return f"{len(found)} records, expected {len(expected)}"
    return next((f"{b}, expected {a}" for a, b in zip(expected, found, strict=True) if a != b), "")


def require_nothing_left(session: int) -> None:
    """Raise `RuntimeError` where a process of that session is there after `_GRACE` seconds."""
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
        except OSError:  # it has ended meanwhile
            continue
        if int(of) == session and state != "Z":
            found.append(int(file.parent.name))
    return found


def main(show: Callable[[str], object] = print) -> int:
    """A line an interruption; 1 where a resumed run has other records."""
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
