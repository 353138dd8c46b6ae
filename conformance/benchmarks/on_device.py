"""The cost of judging a candidate on an accelerator, on the device and in memory, in one process.

The network, its batch and the measured operations are those of `benchmarks.subject`, with the candidate on the device. Each
judgement on the device is compared with that in memory: outcomes, roles and the names of the filters that detect something are
equal, and the largest relative difference of an RMS is printed. Times are medians of the repeats. Memory is the device's peak above
the network's own weights. In `on_device.json`, written by an earlier version, `plain` and `seconds` are the smallest times, and
`ratios` medians.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.benchmarks.resources import Seconds, ratio, times
from conformance.benchmarks.subject import LAYERS, network
from conformance.implementations.hugging_face import HuggingFace, run
from conformance.judge import cache
from conformance.judge.depth import DEPTHS, Depth
from conformance.judge.evidence import Verdict
from conformance.judge.judge import IN_MEMORY, Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.devices import description
from conformance.oracle import Network

RESULTS = Path(__file__).with_name("on_device.json")


@dataclass(frozen=True)
class DeviceCost:
    """The measured costs.

    Attributes:
        device: name of the device.
        cores: number of cores of the machine.
        plain: wall time of the plain pass on the device, in seconds.
        seconds: wall time of each judgement, by `<depth>, <place>`.
        ratios: the same as ratios to the plain pass.
        peak: peak of the device's memory during a judgement on the device, above the weights, in MiB, by depth.
        largest_difference: largest relative difference of an RMS between the judgements on the device and in memory.
    """

    device: str
    cores: int
    plain: float
    seconds: dict[str, float]
    ratios: dict[str, float]
    peak: dict[str, float]
    largest_difference: float


class _Subject:
    """Hugging Face's network on a device, with a batch."""

    def __init__(self, device: str, layers: int) -> None:
        self._device = device
        self._checkpoint, self._batch = network(layers)
        self._weights = rounded_weights(self._checkpoint, "float32")
        self._given = self._batch.on(device)
        self._model = HuggingFace("eager").module(self._checkpoint)
        for part in self._model.values():
            part.to(device)

    def plain(self) -> None:
        """Run a forward pass and wait for it."""
        import torch

        with torch.no_grad():
            self._model["bert"](
                self._given.input_ids, attention_mask=self._given.attention_mask, token_type_ids=self._given.token_type_ids
            )
        torch.get_device_module(self._device).synchronize()

    def verdicts(self, depth: Depth, on: str) -> list[Verdict]:
        """Return the verdicts of a judgement on a device or in memory."""
        one = Network(self._checkpoint.architecture, self._weights, self._batch)
        arithmetic = representative_hypothesis("float32", self._device).arithmetic
        judge = Judge(one, "float32", self._device, depth=depth, sigma=cache.cached_sigma(one, arithmetic, self._checkpoint), on=on)
        return list(select_arithmetic(judge.judge(run(self._model, self._given))))


def _kept(work: Callable[[], list[Verdict]], found: list[list[Verdict]]) -> Callable[[], None]:
    return lambda: found.append(work())


def largest_difference(these: Sequence[Verdict], those: Sequence[Verdict]) -> float:
    """Return the largest relative difference of an RMS between two judgements of the same stream.

    Raises:
        SystemExit: they differ in an outcome, a role, a reason or a filter that detects something.
    """
    largest = 0.0
    for one, other in zip(these, those, strict=True):
        if _conclusion(one) != _conclusion(other):
            raise SystemExit(f"{one.activation}: {_conclusion(one)} on the device, {_conclusion(other)} in memory")
        if one.local and other.local and one.local.error.rms and other.local.error.rms:
            largest = max(largest, abs(one.local.error.rms / other.local.error.rms - 1.0))
    return largest


def _conclusion(verdict: Verdict) -> tuple[object, ...]:
    detected = tuple(f.name for f in verdict.local.filters if f.detected) if verdict.local else ()
    return verdict.activation, verdict.outcome, verdict.role, verdict.reason, detected


def measured(device: str, layers: int = LAYERS, repeats: int = 3) -> DeviceCost:
    """Return the costs, measured on a device; the first judgement on it, which loads its libraries, is not counted."""
    import torch

    subject = _Subject(device, layers)
    subject.plain()
    plain = times(subject.plain, 5)
    library, largest = torch.get_device_module(device), 0.0
    seconds: dict[str, float] = {}
    ratios: dict[str, float] = {}
    peak: dict[str, float] = {}
    weights = library.memory_allocated()
    for depth in DEPTHS:
        found: list[list[Verdict]] = []
        subject.verdicts(depth, device)
        library.reset_peak_memory_stats()
        there = times(_kept(lambda: subject.verdicts(depth, device), found), repeats)  # noqa: B023  # Called at once.
        peak[depth] = round((library.max_memory_allocated() - weights) / 2**20)
        here = times(_kept(lambda: subject.verdicts(depth, IN_MEMORY), found), 1)  # noqa: B023
        for place, of_place in (("on the device", there), ("in memory", here)):
            seconds[f"{depth}, {place}"] = round(_median(of_place), 3)
            ratios[f"{depth}, {place}"] = ratio(of_place, plain).wall
        largest = max(largest, largest_difference(found[0], found[-1]))
    name = description(device) or device
    return DeviceCost(name, os.cpu_count() or 1, _median(plain), seconds, ratios, peak, largest)


def _median(found: Sequence[Seconds]) -> float:
    """Return the median wall time, which `benchmarks.resources.ratio` divides too."""
    return statistics.median(wall for wall, _ in found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the costs; `--write` saves them beside this file."""
    parser = argparse.ArgumentParser(prog="python -m conformance.benchmarks.on_device", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        os.environ[cache.VARIABLE] = home
        cost: dict[str, Any] = asdict(measured(asked.device, asked.layers))
    print(json.dumps(cost, indent=2))
    if asked.write:
        RESULTS.write_text(json.dumps(cost, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
