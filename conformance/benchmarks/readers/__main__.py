"""Damaged files through every reader: `python -m conformance.benchmarks.readers [--count N] [--seed S] [--full] [--write]`.

A reader must return a value, or raise one of the project's own errors, within 5 s and 1 GiB. `--full` instead tries files at their
size limits, each filled with the content that takes most time or memory, in a separate process. `--write` saves the table,
`RESULTS.md` or `FULL.md`.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from conformance.benchmarks.readers.full_files import full_files, read_apart
from conformance.benchmarks.readers.good_files import Reader, readers
from conformance.benchmarks.readers.mutations import mutated
from conformance.benchmarks.resources import forget_peak, high_water_mib
from conformance.errors import ConformanceError

SECONDS, MEMORY = 5.0, 2**30  # Limits for a reader.
TABLE, FULL = Path(__file__).with_name("RESULTS.md"), Path(__file__).with_name("FULL.md")
WRONG = ("untyped error", "too long", "too large")
COLUMNS = ("read", "typed error", *WRONG)


@dataclass
class Tally:
    """The outcomes of the damaged files of one reader.

    Attributes:
        outcomes: number of files by outcome.
        untyped: messages of errors that are not the project's own.
        slowest: longest time of a read, in seconds.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    slowest: float = 0.0


class _TooLong(BaseException):
    """A reader exceeded its time limit."""


@contextmanager
def limited() -> Iterator[None]:
    """Interrupt the body of the context after `SECONDS`."""

    def end(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def tried(reader: Reader, count: int, seed: int, folder: Path) -> Tally:
    """Pass damaged files to a reader, after the undamaged files, which must be readable.

    Args:
        reader: the reader.
        count: number of damaged files.
        seed: seed of the mutations.
        folder: folder for the files.
    """
    tally, draw = Tally(), random.Random(seed)
    folder.mkdir()
    for number in range(-1, count):
        if number < 0:
            reader.write(folder)
            reader.read(folder)
            continue
        reader.write(folder, mutated(reader.files[reader.damaged], draw))
        start = time.perf_counter()
        tally.outcomes[_outcome(reader, folder, tally)] += 1
        tally.slowest = max(tally.slowest, time.perf_counter() - start)
    return tally


def _outcome(reader: Reader, folder: Path, tally: Tally) -> str:
    forget_peak()
    before, outcome = high_water_mib(), "read"
    try:
        with limited():
            reader.read(folder)
    except ConformanceError:
        outcome = "typed error"
    except _TooLong:
        outcome = "too long"
    except Exception as error:
        outcome = "untyped error"
        tally.untyped.append(f"{type(error).__name__}: {error!s:.200}")
    return "too large" if high_water_mib() - before > MEMORY / 2**20 else outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per reader; return 1 if some reader fails."""
    parser = argparse.ArgumentParser(prog="conformance.benchmarks.readers", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="damaged files a reader (default: 20,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name begins so")
    parser.add_argument("--write", action="store_true", help=f"keep the table, {TABLE.name}")
    parser.add_argument("--full", action="store_true", help="files at their limits, and no damaged ones")
    arguments = parser.parse_args(argv)
    if arguments.only and arguments.write:
        parser.error("--only prints its table, and --write saves that of every reader: leave one of them out")
    with tempfile.TemporaryDirectory() as home:
        known = {name: r for name, r in readers(Path(home)).items() if name.startswith(arguments.only)}
        if arguments.full:
            return _full(known, Path(home) / "full", keep=arguments.write)
        rows = [f"| reader | {' | '.join(COLUMNS)} | slowest, s |", "|---|" + "---:|" * (len(COLUMNS) + 1)]
        wrong = 0
        for number, (name, reader) in enumerate(known.items()):
            tally = tried(reader, arguments.count, arguments.seed, Path(home) / f"damaged {number}")
            rows.append(f"| {name} | {' | '.join(str(tally.outcomes[c]) for c in COLUMNS)} | {tally.slowest:.2f} |")
            print(rows[-1], *sorted(set(tally.untyped))[:5], sep="\n", flush=True)
            wrong += sum(tally.outcomes[c] for c in WRONG)
    if arguments.write:
        how = f"`python -m conformance.benchmarks.readers --count {arguments.count} --seed {arguments.seed} --write`"
        TABLE.write_text("\n".join([f"{arguments.count} damaged files a reader: {how}.", "", *rows, ""]), "utf-8")
    return int(wrong > 0)


def _full(known: Mapping[str, Reader], folder: Path, *, keep: bool) -> int:
    rows, wrong = ["| reader | full of | MiB | outcome | s of the processor | MiB of memory |", "|---|---|---:|---|---:|---:|"], 0
    for full in full_files(known):
        took = read_apart(known[full.reader], full, folder)
        size, memory = full.size / 2**20, took.memory / 2**20
        rows.append(f"| {full.reader} | {full.what} | {size:.1f} | {took.outcome} | {took.seconds:.2f} | {memory:.0f} |")
        print(rows[-1], flush=True)
        wrong += took.outcome not in ("read", "typed error") or took.seconds > SECONDS or took.memory > MEMORY
    if keep:
        how = "`python -m conformance.benchmarks.readers --full --write`"
        FULL.write_text("\n".join([f"Files at the readers' limits, on one machine: {how}.", "", *rows, ""]), "utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
