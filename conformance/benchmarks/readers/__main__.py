"""Damaged files through every reader: `python -m conformance.benchmarks.readers [--count N] [--seed S] [--write]`.

A reader must return a value, or raise one of the project's own errors, within 5 s and 1 GiB. `--write` saves the table,
`RESULTS.md`.
"""

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

from conformance.benchmarks.harness import parser, publish, table
from conformance.benchmarks.readers.good_files import Reader, readers
from conformance.benchmarks.readers.mutations import mutated
from conformance.benchmarks.resources import forget_peak, high_water_mib
from conformance.errors import ConformanceError

SECONDS, MEMORY = 5.0, 2**30  # Limits for a reader.
TABLE = Path(__file__).with_name("RESULTS.md")
OUTCOMES = ("read", "typed error", "untyped error", "too long", "too large")
HEADINGS = ("reader", *OUTCOMES, "slowest, s")


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


Outcomes = Counter[str]


def _damaged(these: Mapping[str, Reader], count: int, seed: int, home: Path, every: Outcomes) -> Iterator[tuple[object, ...]]:
    for number, (name, reader) in enumerate(these.items()):
        tally = tried(reader, count, seed, home / f"damaged {number}")
        every.update(tally.outcomes)
        print(*(f"{error}\n" for error in sorted(set(tally.untyped))[:5]), sep="", end="", file=sys.stderr)
        yield (name, *(tally.outcomes[outcome] for outcome in OUTCOMES), f"{tally.slowest:.2f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per reader, and return 1 if some reader fails; `--write` also saves them."""
    options = parser(__doc__, TABLE, parallel=False)
    options.add_argument("--count", type=int, default=20_000, help="damaged files a reader (default: 20,000)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="", help="readers whose name begins so")
    chosen = options.parse_args(argv)
    if chosen.only and chosen.write:
        options.error("--only prints its table, and --write saves that of every reader: leave one of them out")
    with tempfile.TemporaryDirectory() as folder:
        home, every = Path(folder), Counter[str]()
        these = {name: reader for name, reader in readers(home).items() if name.startswith(chosen.only)}
        lines = table(HEADINGS, _damaged(these, chosen.count, chosen.seed, home, every))
        publish(TABLE, "Damaged files", lines, write=chosen.write)
    return int(any(every[outcome] for outcome in every.keys() - OUTCOMES[:2]))


if __name__ == "__main__":
    sys.exit(main())
