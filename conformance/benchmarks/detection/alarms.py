"""False alarms: correct variants on networks of several architectures and seeds, in every format, with each activation judged.

`python -m conformance.benchmarks.detection.alarms --write` writes `ALARMS.md`, beside this file; with `--device cuda` the variants
compute there, and `--write` writes `ALARMS.cuda.md`. With `--golden tiny wide`, the networks are those of these goldens, in which
each variant computes everywhere or, if it changes single modules, in one layer alone; `--write` writes `ALARMS.goldens.md`.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.detection.networks import ARCHITECTURES, INITIAL, network
from conformance.benchmarks.detection.score import draw, use_one_thread
from conformance.benchmarks.detection.variants import VARIANTS
from conformance.checks.check_values import check_values
from conformance.numerics.devices import description

TABLE = Path(__file__).with_name("ALARMS.md")
NETWORKS = (*ARCHITECTURES, *INITIAL)
FIRST = 101  # The first seed; mistakes are planted in networks of other seeds.


class Task(NamedTuple):
    """A correct variant on one network.

    Attributes:
        variant: name of the variant.
        network: name of the network.
        seed: seed of the network; a golden has one.
        dtype: format of the run.
        layer: the layer in which alone the variant computes; None for all steps.
    """

    variant: str
    network: str
    seed: int
    dtype: str
    layer: int | None = None


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


def tasks_on_networks(seeds: int) -> list[Task]:
    """Return every variant on `seeds` networks of each kind, in each format."""
    return [Task(*one) for one in product(VARIANTS, NETWORKS, range(FIRST, FIRST + seeds), DTYPES)]


def tasks_on_goldens(goldens: Sequence[str]) -> Iterator[Task]:
    """Yield every variant on each golden's network, in each format: everywhere, and in one layer that is selected by hash."""
    for variant, golden, dtype in product(VARIANTS, goldens, DTYPES):
        yield Task(variant, golden, 1, dtype)
        layers = network(golden, 1).checkpoint.architecture.num_hidden_layers
        if layers > 1 and VARIANTS[variant].in_layer(0):
            yield Task(variant, golden, 1, dtype, int(draw((variant, golden, dtype)), 16) % layers)


def alarm(device: str, task: Task) -> Alarm:
    """Judge one correct variant on one network; no activation is judged if the variant does not support the case.

    Args:
        device: device that the variant computes on.
        task: the variant and the network.

    Raises:
        RuntimeError: the variant could not be judged.
    """
    variant, architecture, seed, dtype, layer = task
    candidate = VARIANTS[variant] if layer is None else VARIANTS[variant].in_layer(layer)
    assert candidate is not None
    result = check_values(candidate, network(architecture, seed), device, dtype)
    if result.outcome not in ("pass", "fail", "skip"):
        raise RuntimeError(f"{task}: {result.outcome}: {result.reason}")
    judged = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
    failed = [v.activation for v in judged if v.outcome == "fail"]
    where = "" if layer is None else f" in layer {layer}"
    return Alarm(dtype, len(judged), tuple(f"{variant}{where}, {architecture} {seed}, {dtype}: {name}" for name in failed))


def table(alarms: Sequence[Alarm], asked: str, networks: Sequence[str], device: str = "cpu") -> str:
    """Return the committed table, in Markdown.

    Args:
        alarms: the results.
        asked: the options with which they were obtained.
        networks: lines that say which networks were judged.
        device: the device that computed.
    """
    lines = [
        "# False alarms" if device == "cpu" else f"# False alarms on {description(device) or device}",
        "",
        f"Written by `python -m conformance.benchmarks.detection.alarms {asked} --write`: correct variants,",
        f"{len(VARIANTS)} of them, in the formats in which each is correct, {networks[0]}",
        *networks[1:],
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


def _of_networks(seeds: int) -> tuple[str, ...]:
    return (
        f"on networks of {len(NETWORKS)} kinds: {len(ARCHITECTURES)} architectures with",
        f"discriminating weights, and {len(INITIAL)} deviations of initial weights; {seeds} of each kind.",
    )


def _of_goldens(goldens: Sequence[str]) -> tuple[str, ...]:
    return (
        "on the networks",
        f"of the goldens {', '.join(goldens)}: each everywhere and, if it changes single modules, in one layer alone.",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Judge all variants and print the table; `--write` saves it beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.detection.alarms")
    parser.add_argument("--seeds", type=int, default=4, help="of each kind of network (default: 4)")
    parser.add_argument("--golden", nargs="+", metavar="NAME", help="goldens whose networks are used instead")
    parser.add_argument("--device", default="cpu", help="device that the variants compute on (default: cpu)")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--write", action="store_true", help="write the table beside this file")
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    golden, seeds, device = arguments.golden, arguments.seeds, arguments.device
    tasks = list(tasks_on_goldens(golden)) if golden else tasks_on_networks(seeds)
    found: list[Alarm] = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, use_one_thread) as pool:
        for one in pool.imap_unordered(partial(alarm, device), tasks, chunksize=8):
            found.append(one)
            for name in one.failed:
                print(name, file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    asked = f"--golden {' '.join(golden)}" if golden else f"--seeds {seeds}"
    asked += "" if device == "cpu" else f" --device {device}"
    text = table(found, asked, _of_goldens(golden) if golden else _of_networks(seeds), device)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    if arguments.write:
        kinds = [*(["goldens"] if golden else []), *([device.partition(":")[0]] if device != "cpu" else []), "md"]
        TABLE.with_suffix(f".{'.'.join(kinds)}").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
