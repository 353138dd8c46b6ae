"""The cost of judging, as ratios to the plain forward pass, in one process and on one machine.

The network has base size (width 768, 12 heads, random weights; batch 8, length 128, float32) and Hugging Face's eager attention.

- *plain*: a forward pass without hooks; the median of five.
- *hooks*: a forward pass with every activation copied at its hook and then discarded.
- *assert_close*: hooks, and `torch.testing.assert_close` at its defaults of each activation against a second forward pass.
- *full, nothing kept*, *full*, *screen*: a judged run without the cache, with the cache, and at depth screen.

Each is repeated, and its ratio is printed with the smallest and the largest. Memory is the peak resident size of a judged run above
that of a plain pass, each in a separate process, for networks of several depths: it must not grow with depth.
"""

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.judge import cache
from conformance.judge.depth import Depth
from conformance.judge.evidence import Verdict
from conformance.judge.judge import Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.model.activations import parameter_shapes
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.checkpoint import Checkpoint, LazyWeights, rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network
from implementations.hugging_face import HuggingFace, run

Seconds = tuple[float, float]  # Wall time and CPU time.

BATCH, LENGTH, LAYERS = 8, 128, 12
DEPTHS = (3, 6, 12)
RESULTS = Path(__file__).with_name("cost.json")


@dataclass(frozen=True)
class Ratio:
    """The ratio of a measured time to that of the plain pass.

    Attributes:
        wall, least, largest: median, smallest and largest ratio of wall times.
        cpu: median ratio of CPU times.
    """

    wall: float
    least: float
    largest: float
    cpu: float


@dataclass(frozen=True)
class Cost:
    """The measured costs.

    Attributes:
        processor: number of cores and torch's instruction set.
        threads: number of torch's threads.
        plain: wall time of the plain pass, in seconds.
        ratios: ratios to the plain pass, by name of the measurement.
        memory: peak memory above that of the plain pass, in MiB, by number of layers.
    """

    processor: str
    threads: int
    plain: float
    ratios: dict[str, Ratio]
    memory: dict[str, float]


def network(layers: int, size: int = BATCH, length: int = LENGTH, **settings: Any) -> tuple[Checkpoint, Batch]:
    """Return a network of base width with random weights, and a batch in which every other row is half padding.

    Args:
        layers: number of hidden layers.
        size: number of rows of the batch.
        length: number of tokens of a row.
        settings: further settings of the architecture.
    """
    architecture = Architecture(
        **{"vocab_size": 30522, **settings},
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
    )
    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {}
    for name, shape in parameter_shapes(architecture).items():
        normal = 0.04 * rng.standard_normal(shape, np.float32)
        stored[name] = normal + 1.0 if name.endswith("LayerNorm.weight") else normal
    weights = LazyWeights(stored, lambda name: np.asarray(stored[name], np.float64))
    mask = np.ones((size, length), np.int64)
    mask[1::2, length // 2 :] = 0
    ids = rng.integers(1, architecture.vocab_size, mask.shape)  # 0 is padding, whose gradient some candidates omit
    return Checkpoint(architecture, weights), Batch(ids, np.zeros_like(ids), mask)


class Subject:
    """A candidate built from a checkpoint, with a batch and the operations to be measured."""

    def __init__(self, checkpoint: Checkpoint, batch: Batch, attention: str = "eager") -> None:
        """Build the candidate; the time for this is not measured."""
        self.batch = batch.on("cpu")
        self.model = HuggingFace(attention).module(checkpoint)
        self._checkpoint, self._batch = checkpoint, batch
        self._weights = rounded_weights(checkpoint, "float32")

    @property
    def bert(self) -> Any:
        """Hugging Face's `BertModel`."""
        return self.model["bert"]

    def plain(self) -> None:
        """Run a forward pass."""
        import torch

        b = self.batch
        with torch.no_grad():
            self.bert(b.input_ids, attention_mask=b.attention_mask, token_type_ids=b.token_type_ids)

    def activations(self) -> Iterator[tuple[str, Any]]:
        """Yield every activation that the suite observes, copied, in the order of computation."""
        return run(self.model, self.batch)

    def hooks(self) -> None:
        """Run a forward pass that copies every activation."""
        for _ in self.activations():
            pass

    def assert_close(self) -> None:
        """Compare every activation with that of a second pass."""
        import torch

        expected = dict(self.activations())
        for name, value in self.activations():
            torch.testing.assert_close(value, expected[name])

    def verdicts(self, depth: Depth = "full") -> list[Verdict]:
        """Return the verdicts of a judged run, in the order of computation."""
        network = Network(self._checkpoint.architecture, self._weights, self._batch)
        sigma = cache.cached_sigma(network, representative_hypothesis("float32").arithmetic, self._checkpoint)
        return list(select_arithmetic(Judge(network, "float32", depth=depth, sigma=sigma).judge(self.activations())))

    def judged(self, depth: Depth = "full") -> None:
        """Run a judged pass.

        Raises:
            SystemExit: the candidate, which is correct, fails, or nothing is judged.
        """
        verdicts = self.verdicts(depth)
        failed = [v.activation for v in verdicts if v.outcome == "fail"]
        if failed or not any(v.outcome == "pass" for v in verdicts):
            raise SystemExit(f"false alarms: {failed}")


def times(work: Callable[[], object], repeats: int) -> list[Seconds]:
    """Return the wall and CPU seconds of each repeat."""
    found: list[Seconds] = []
    for _ in range(repeats):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return found


def ratio(found: Sequence[Seconds], plain: Sequence[Seconds]) -> Ratio:
    """Return the ratio of repeated measurements to those of the plain pass."""
    base = tuple(statistics.median(column) for column in zip(*plain, strict=True))
    walls, cpus = ([t / b for t in column] for column, b in zip(zip(*found, strict=True), base, strict=True))
    return Ratio(*(round(x, 2) for x in (statistics.median(walls), min(walls), max(walls), statistics.median(cpus))))


def _ratios(repeats: int) -> tuple[float, dict[str, Ratio]]:
    subject = Subject(*network(LAYERS))
    subject.plain()
    plain = times(subject.plain, 5)
    found: dict[str, list[Seconds]] = {
        "hooks": times(subject.hooks, repeats),
        "assert_close": times(subject.assert_close, repeats),
    }
    os.environ[cache.VARIABLE] = cache.OFF
    found["full, nothing kept"] = times(subject.judged, repeats)
    with tempfile.TemporaryDirectory() as home:
        os.environ[cache.VARIABLE] = home
        subject.judged()
        found["full"] = times(subject.judged, repeats)
    found["screen"] = times(lambda: subject.judged("screen"), repeats)
    return statistics.median(wall for wall, _ in plain), {what: ratio(t, plain) for what, t in found.items()}


def _peak(layers: int, judged: bool) -> float:
    os.environ[cache.VARIABLE] = cache.OFF
    subject = Subject(*network(layers))
    return peak_mib(subject.judged if judged else subject.plain)


def peak_mib(work: Callable[[], object]) -> float:
    """Return the peak resident size of this process while `work` runs, in MiB."""
    gc.collect()
    forget_peak()
    work()
    return high_water_mib()


def forget_peak() -> None:
    """Reset VmHWM to the present size, so that what came before is not included (proc(5), clear_refs).

    Freed memory that the C library holds is returned first (malloc_trim(3), glibc): an allocation there would not raise the peak.
    """
    with suppress(AttributeError):  # Other C libraries do not have it.
        ctypes.CDLL(None).malloc_trim(0)
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5", "ascii")


def high_water_mib() -> float:
    """Return VmHWM of this process; `ru_maxrss` would include the parent's memory before this process was started.

    Raises:
        SystemExit: the system does not report VmHWM.
    """
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmHWM in /proc/self/status: the memory benchmark needs Linux")


def apart(function: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of a function in a separate process.

    Raises:
        ChildProcessError: the process ended without a result; the message contains the error.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_sent, args=(sending, function, *arguments))
    process.start()
    sending.close()
    try:
        error, value = receiving.recv()
    except EOFError:
        error, value = "it was ended from outside", None
    process.join()
    if error:
        raise ChildProcessError(error)
    return value


def _sent(sending: Any, function: Callable[..., Any], *arguments: object) -> None:
    try:
        sending.send(("", function(*arguments)))
    except BaseException as error:
        sending.send((f"{type(error).__name__}: {error}", None))
        raise


def measured(repeats: int) -> Cost:
    """Return all costs, measured on this machine."""
    import torch

    plain, ratios = _ratios(repeats)
    memory = {str(layers): round(apart(_peak, layers, True) - apart(_peak, layers, False), 0) for layers in DEPTHS}
    processor = f"{os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}"
    return Cost(processor, torch.get_num_threads(), round(plain, 3), ratios, memory)


def lines(cost: Cost, before: dict[str, Any] | None) -> list[str]:
    """Return the figures as text, each with the committed one."""
    earlier = (before or {}).get("ratios", {})
    found = [f"plain forward pass, {LAYERS} layers: {cost.plain:.2f} s ({cost.processor}, {cost.threads} threads)"]
    for what, r in cost.ratios.items():
        was = f"; committed: {earlier[what]['wall']}" if what in earlier else ""
        found.append(f"{what}: {r.wall} times ({r.least} to {r.largest}), CPU {r.cpu} times{was}")
    found += [f"peak memory above a plain pass, {layers} layers: {mib:.0f} MiB" for layers, mib in cost.memory.items()]
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
