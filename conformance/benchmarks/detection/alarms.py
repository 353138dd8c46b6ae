"""False alarms: correct variants on networks of several architectures and seeds, in every format, with each activation judged.

`python -m conformance.benchmarks.detection.alarms --write` writes `ALARMS.md`, beside this file; with `--device cuda` the variants
compute there, and `--write` writes `ALARMS.cuda.md`.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from conformance.benchmarks.detection.networks import ARCHITECTURES, INITIAL, network
from conformance.benchmarks.detection.planted.plant import DTYPES
from conformance.benchmarks.detection.score import one_thread
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.check_values import check_values
from conformance.numerics.devices import description

TABLE = Path(__file__).with_name("ALARMS.md")
NETWORKS = (*ARCHITECTURES, *INITIAL)
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


def alarm(device: str, task: tuple[str, str, int, str]) -> Alarm:
    """Judge one correct variant on one network; no activation is judged if the variant does not support the case.

    Args:
        device: device that the variant computes on.
        task: variant, architecture, seed and dtype.

    Raises:
        RuntimeError: the variant could not be judged.
    """
    variant, architecture, seed, dtype = task
    result = check_values(VARIANTS[variant], network(architecture, seed), device, dtype)
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{task}: {result.outcome}: {result.reason}")
    judged = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
    failed = [v.activation for v in judged if v.outcome == "fail"]
    return Alarm(dtype, len(judged), tuple(f"{variant}, {architecture} {seed}, {dtype}: {name}" for name in failed))


def table(alarms: Sequence[Alarm], seeds: int, device: str = "cpu") -> str:
    """Return the committed table, in Markdown."""
    asked = f"--seeds {seeds}" if device == "cpu" else f"--seeds {seeds} --device {device}"
    lines = [
        "# False alarms" if device == "cpu" else f"# False alarms on {description(device) or device}",
        "",
        f"Written by `python -m conformance.benchmarks.detection.alarms {asked} --write`: correct variants,",
        f"{len(VARIANTS)} of them, in the formats in which each is correct, on networks of {len(NETWORKS)} kinds: "
        f"{len(ARCHITECTURES)} architectures with",
        f"discriminating weights, and {len(INITIAL)} deviations of initial weights; {seeds} of each kind.",
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
    parser.add_argument("--seeds", type=int, default=4, help="of each kind of network (default: 4)")
    parser.add_argument("--device", default="cpu", help="device that the variants compute on (default: cpu)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table beside this file")
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    tasks = list(product(VARIANTS, NETWORKS, range(FIRST, FIRST + arguments.seeds), DTYPES))
    found: list[Alarm] = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, one_thread) as pool:
        for one in pool.imap_unordered(partial(alarm, arguments.device), tasks, chunksize=8):
            found.append(one)
            for name in one.failed:
                print(name, file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    text = table(found, arguments.seeds, arguments.device)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.write:
        kind = arguments.device.partition(":")[0]
        (TABLE if kind == "cpu" else TABLE.with_suffix(f".{kind}.md")).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
