"""False alarms: correct variants on networks of several architectures and seeds, in every format, with each activation judged.

`python -m conformance.benchmarks.detection.alarms --write` writes `ALARMS.md`, beside this file.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from conformance.benchmarks.detection.networks import ARCHITECTURES, network
from conformance.benchmarks.detection.planted.plant import DTYPES
from conformance.benchmarks.detection.score import one_thread
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.check_values import check_values

TABLE = Path(__file__).with_name("ALARMS.md")
FIRST = 101  # The first seed; mistakes are planted in networks of other seeds.


@dataclass(frozen=True)
class Alarm:
    """The result of a correct candidate on one network.

    Attributes:
        dtype: format of the run.
        judged: number of activations judged.
        failed: description of each activation that failed.
    """

    dtype: str
    judged: int
    failed: tuple[str, ...]


def alarm(task: tuple[str, str, int, str]) -> Alarm:
    """Judge one correct variant on one network; no activation is judged if the variant does not support the case.

    Args:
        task: variant, architecture, seed and dtype.

    Raises:
        RuntimeError: the variant could not be judged.
    """
    variant, architecture, seed, dtype = task
    result = check_values(VARIANTS[variant], network(architecture, seed), dtype=dtype)
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{task}: {result.outcome}: {result.reason}")
    judged = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
    failed = [v.activation for v in judged if v.outcome == "fail"]
    return Alarm(dtype, len(judged), tuple(f"{variant}, {architecture} {seed}, {dtype}: {name}" for name in failed))


def table(alarms: Sequence[Alarm], seeds: int) -> str:
    """Return the committed table, in Markdown."""
    lines = [
        "# False alarms",
        "",
        f"Written by `python -m conformance.benchmarks.detection.alarms --seeds {seeds} --write`: correct variants, "
        f"{len(VARIANTS)} of them,",
        f"on networks of {len(ARCHITECTURES)} architectures, {seeds} of each, in the formats in which the variant is correct.",
        "",
        "| dtype | judged activations | false alarms |",
        "| --- | ---: | ---: |",
    ]
    for dtype in DTYPES:
        of_one = [a for a in alarms if a.dtype == dtype]
        lines.append(f"| {dtype} | {sum(a.judged for a in of_one)} | {sum(len(a.failed) for a in of_one)} |")
    failed = sorted(name for a in alarms for name in a.failed)
    lines += [f"| all | {sum(a.judged for a in alarms)} | {len(failed)} |"]
    return "\n".join([*lines, *([""] if failed else []), *(f"- {name}" for name in failed)]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Judge all variants and print the table; `--write` saves it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection.alarms")
    parser.add_argument("--seeds", type=int, default=4, help="of each architecture (default: 4)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    tasks = list(product(VARIANTS, ARCHITECTURES, range(FIRST, FIRST + arguments.seeds), DTYPES))
    found: list[Alarm] = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, one_thread) as pool:
        for one in pool.imap_unordered(alarm, tasks, chunksize=8):
            found.append(one)
            for name in one.failed:
                print(name, file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    text = table(found, arguments.seeds)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.write:
        TABLE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
