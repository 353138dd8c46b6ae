"""Runs killed at random moments and resumed: the steps lost, and whether the result equals that of an uninterrupted run."""

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conformance.benchmarks.pretraining.corpora import generate
from conformance.implementations.demystified.checkpoints import newest
from conformance.implementations.demystified.curve import CURVE
from conformance.implementations.demystified.preparation import PARTIAL, PREPARED

STEPS, SAVE_EVERY = 300, 25
_PREPARED_LINES = 10_000  # Lines of the corpus whose preparation is killed.
_SETTINGS = ("--layers=1", "--hidden-size=32", "--heads=2", "--batch-size=8", "--length=24", "--vocabulary-size=300", "--no-open")


@dataclass(frozen=True)
class Kill:
    """A kill: the number of steps done, the number of steps kept, and the files that differ at the end."""

    done: int
    kept: int
    different: tuple[str, ...]


def in_training(folder: Path, count: int, seed: int) -> list[Kill]:
    """Kill a run in each of `count` random steps, and resume it once."""
    _whole(_command(folder / "whole", STEPS))
    draw, found = random.Random(seed), []
    for number in range(count):
        out, at = folder / f"step-{number}", draw.randrange(1, STEPS)
        killed(_command(out, STEPS), lambda out=out, at=at: _steps(out) >= at)  # type: ignore[misc]
        done, checkpoint = _steps(out), newest(out)
        _whole([*_command(out, STEPS), "--resume"])
        found.append(Kill(done, 0 if checkpoint is None else int(checkpoint.name[-9:]), different(out, folder / "whole")))
    return found


def in_preparation(folder: Path, count: int, seed: int) -> list[Kill]:
    """Kill a run at each of `count` random moments between its first file and its prepared corpus, and start it again.

    A run that was faster than the one whose preparation was timed, so that the kill hit its training, is not counted.
    """
    corpus = folder / "lines"
    corpus.mkdir()
    generate(corpus, _PREPARED_LINES)
    whole = _command(folder / "prepared", 1, str(corpus))
    seconds = _seconds_of_preparation(whole, folder / "prepared")
    draw, number = random.Random(seed), itertools.count()
    found: list[Kill] = []
    while len(found) < count:
        out, after = folder / f"moment-{next(number)}", draw.uniform(0.0, seconds)
        killed(_command(out, 1, str(corpus)), _after(out / PARTIAL, after))
        if (out / PREPARED).is_dir():
            continue
        _whole([*_command(out, 1, str(corpus)), "--resume"])
        found.append(Kill(0, 0, different(out, folder / "prepared")))  # no step is done before the corpus is prepared
    return found


def _command(out: Path, steps: int, *corpus: str) -> list[str]:
    start = [sys.executable, "-m", "conformance.implementations.demystified.pretrain", *corpus, *_SETTINGS]
    return [*start, f"--steps={steps}", f"--save-every={SAVE_EVERY}", f"--out={out}"]


def _whole(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def killed(command: list[str], now: Callable[[], bool]) -> None:
    """Run a command until `now()` holds, then send it SIGKILL.

    Raises:
        RuntimeError: the command ends before.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not now():
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode} before it was killed: {' '.join(command)}")
        time.sleep(0.001)
    process.kill()
    process.wait()


def _after(path: Path, seconds: float) -> Callable[[], bool]:
    """Return a function that returns whether a path has existed for this many seconds."""
    seen: list[float] = []

    def now() -> bool:
        if not seen and path.exists():
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() - seen[0] >= seconds

    return now


def _seconds_of_preparation(command: list[str], out: Path) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    moments = []
    for name in (PARTIAL, PREPARED):
        while not (out / name).exists():
            time.sleep(0.001)
        moments.append(time.monotonic())
    if process.wait():
        raise RuntimeError(f"ended with {process.returncode}: {' '.join(command)}")
    return moments[1] - moments[0]


def _steps(out: Path) -> int:
    """Return the number of steps whose scores are in the curve."""
    curve = out / CURVE
    return curve.read_bytes().count(b"\n") if curve.is_file() else 0


def different(out: Path, whole: Path) -> tuple[str, ...]:
    """Return the files of the uninterrupted run that are missing in the other run or differ from it byte by byte."""
    paths = [whole / CURVE, *(whole / PREPARED).iterdir(), *whole.glob("checkpoint-*/*")]
    names = [str(path.relative_to(whole)) for path in paths]
    return tuple(name for name in names if not (out / name).is_file() or (out / name).read_bytes() != (whole / name).read_bytes())
