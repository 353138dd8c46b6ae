"""How the cost of a judged run grows with the number of layers, the batch and the length, and how that of the plain pass does.

The network has base width, as in `benchmarks.subject`. One of the three sizes is doubled at a time, from 2 layers, 4 rows and 64
tokens. CPU seconds are those of one process, the median of the repeats; a judged run is at depth full with the accumulated sigma
in the cache. Memory is the peak resident size above that of a plain pass, each in a process of its own.

The exponent is the slope of the logarithm of the CPU seconds, by least squares: 1 where the cost is proportional to the size. A
score exists for every pair of tokens of a row, so the cost of attention grows with the square of the length.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.benchmarks.resources import apart, peak_mib, times
from conformance.benchmarks.subject import Subject, network
from conformance.judge import cache

PAGE = Path(__file__).with_name("GROWTH.md")
BASE = {"layers": 2, "rows": 4, "tokens": 64}
DOUBLINGS = 3

Sizes = tuple[int, ...]  # layers, rows and tokens


@dataclass(frozen=True)
class Measured:
    """CPU seconds of the plain pass and of a judged run, and the peak memory of the latter above the former, in MiB."""

    plain: float
    judged: float
    memory: float


def measured(sizes: Sizes, repeats: int) -> Measured:
    """Return the cost for a network with these layers and a batch with these rows and tokens."""
    subject = Subject(*network(*sizes))
    with tempfile.TemporaryDirectory() as home:
        os.environ[cache.VARIABLE] = home
        subject.judged()
        plain, judged = (statistics.median(cpu for _, cpu in times(work, repeats)) for work in (subject.plain, subject.judged))
    return Measured(plain, judged, apart(_peak, sizes, True) - apart(_peak, sizes, False))


def _peak(sizes: Sizes, judged: bool) -> float:
    os.environ[cache.VARIABLE] = cache.OFF
    subject = Subject(*network(*sizes))
    return peak_mib(subject.judged if judged else subject.plain)


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of ln cost over ln size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def page(found: dict[str, dict[int, Measured]], repeats: int) -> Iterator[str]:
    """Yield the lines of the page: the command, and for each size a table, the exponents and a plot."""
    yield "# Growth of the cost\n"
    yield f"Made by `python -m conformance.benchmarks.growth --repeats {repeats} --write`.\n"
    yield f"{str(__doc__).strip()}\n"
    for name, costs in found.items():
        yield f"## {name.capitalize()}\n"
        yield f"| {name} | plain, CPU s | judged, CPU s | ratio | memory, MiB |"
        yield "| --- | --- | --- | --- | --- |"
        for size, one in costs.items():
            yield f"| {size} | {one.plain:.3f} | {one.judged:.2f} | {one.judged / one.plain:.1f} | {one.memory:.0f} |"
        plain, judged = (exponent([*costs], [getattr(one, what) for one in costs.values()]) for what in ("plain", "judged"))
        yield f"\nExponents: {plain:.2f} of the plain pass, {judged:.2f} of the judged run.\n"
        yield "```mermaid\nxychart-beta"
        yield f'    x-axis "{name}" [{", ".join(map(str, costs))}]'
        yield '    y-axis "CPU seconds of a judged run"'
        yield f"    line [{', '.join(f'{one.judged:.2f}' for one in costs.values())}]"
        yield "```\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the page; `--write` saves it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.growth", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    asked = parser.parse_args(arguments)
    found: dict[str, dict[int, Measured]] = {}
    for name, base in BASE.items():
        sizes = [base * 2**doubling for doubling in range(DOUBLINGS + 1)]
        found[name] = {size: measured(tuple({**BASE, name: size}.values()), asked.repeats) for size in sizes}
    text = "\n".join(page(found, asked.repeats))
    print(text)
    if asked.write:
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
