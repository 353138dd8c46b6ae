"""The cost of judging, as ratios to the plain forward pass, in one process and on one machine.

The network has base size (width 768, 12 heads, random weights; batch 8, length 128, float32) and Hugging Face's eager attention.

- *plain*: a forward pass without hooks; the median of five.
- *hooks*: a forward pass with every activation copied at its hook and then discarded.
- *assert_close*: hooks, and `torch.testing.assert_close` at its defaults of each activation against a second forward pass.
- *full, nothing cached*, *full*, *screen*: a judged run with an empty cache, which it fills, one with that cache, and one at depth
  screen.
- *bfloat16 …*: the same of a candidate of one layer in bfloat16, whose own forward pass is slow on a CPU, as ratios to the plain
  pass of this layer in float32.

Each is repeated, and its ratio is printed with the smallest and the largest. Memory is the peak resident size of a judged run above
that of a plain pass, with one row of the batch, for networks of several depths, each in a separate process: it must not grow with
depth.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conformance.benchmarks.resources import Ratio, Seconds, apart, peak_mib, ratio, times
from conformance.benchmarks.subject import LAYERS, Subject, network
from conformance.judge import cache
from conformance.judge.depth import Depth

DEPTHS = (6, 12, 24, 48)
HALF, HALF_LAYERS = "bfloat16", 1
# Depths of judged runs by name, in their order: the first fills the cache that the others read.
JUDGED: Mapping[str, Depth] = {"full, nothing cached": "full", "full": "full", "screen": "screen"}
RESULTS = Path(__file__).with_name("cost.json")


@dataclass(frozen=True)
class Cost:
    """The measured costs.

    Attributes:
        processor: number of cores and torch's instruction set.
        threads: number of torch's threads.
        plain: wall time of the plain pass, in seconds.
        ratios: ratios to the plain pass, by name of the measurement.
        memory: peak memory above that of the plain pass, with one row, in MiB, by number of layers.
    """

    processor: str
    threads: int
    plain: float
    ratios: dict[str, Ratio]
    memory: dict[str, float]


def _ratios(repeats: int) -> tuple[float, dict[str, Ratio]]:
    subject = Subject(*network(LAYERS))
    plain = _plain(subject)
    found = {
        "hooks": times(subject.hooks, repeats),
        "assert_close": times(subject.assert_close, repeats),
        **_judged(subject, repeats),
    }
    ratios = {what: ratio(t, plain) for what, t in found.items()}
    return statistics.median(wall for wall, _ in plain), {**ratios, **_half_ratios(repeats)}


def _half_ratios(repeats: int) -> dict[str, Ratio]:
    checkpoint, batch = network(HALF_LAYERS)
    plain, subject = _plain(Subject(checkpoint, batch)), Subject(checkpoint, batch, dtype=HALF)
    found = {"plain": times(subject.plain, repeats), **_judged(subject, repeats)}
    return {f"{HALF} {what}": ratio(t, plain) for what, t in found.items()}


def _plain(subject: Subject) -> list[Seconds]:
    subject.plain()
    return times(subject.plain, 5)


def _judged(subject: Subject, repeats: int) -> dict[str, list[Seconds]]:
    found: dict[str, list[Seconds]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as home:
            os.environ[cache.VARIABLE] = home
            for what, depth in JUDGED.items():
                found.setdefault(what, []).extend(times(partial(subject.judged, depth), 1))
    return found


def _peak_above_plain(layers: int) -> float:
    """Return the peak memory of a judged run above that of a plain pass, in MiB."""
    os.environ[cache.VARIABLE] = cache.OFF
    subject = Subject(*network(layers, size=1))
    plain = peak_mib(subject.plain)
    return peak_mib(subject.judged) - plain


def measured(repeats: int) -> Cost:
    """Return all costs, measured on this machine."""
    import torch

    plain, ratios = _ratios(repeats)
    # Side by side, since no time is measured, the deepest network first.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        peaks = list(pool.map(partial(apart, _peak_above_plain), reversed(DEPTHS)))
    memory = {str(layers): round(peak, 0) for layers, peak in zip(DEPTHS, reversed(peaks), strict=True)}
    processor = f"{os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}"
    return Cost(processor, torch.get_num_threads(), round(plain, 3), ratios, memory)


def lines(cost: Cost, before: dict[str, Any] | None) -> list[str]:
    """Return the figures as text, each with the committed one."""
    earlier = (before or {}).get("ratios", {})
    found = [f"plain forward pass, {LAYERS} layers: {cost.plain:.2f} s ({cost.processor}, {cost.threads} threads)"]
    for what, r in cost.ratios.items():
        was = f"; committed: {earlier[what]['wall']}" if what in earlier else ""
        found.append(f"{what}: {r.wall} times ({r.least} to {r.largest}), CPU {r.cpu} times{was}")
    found += [f"peak memory above a plain pass, {layers} layers, one row: {mib:.0f} MiB" for layers, mib in cost.memory.items()]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the costs; `--write` saves them beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    asked = parser.parse_args(arguments)
    cost = measured(asked.repeats)
    before = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else None
    print("\n".join(lines(cost, before)))
    if asked.write:
        RESULTS.write_text(json.dumps(asdict(cost), indent=2) + "\n", "utf-8")
