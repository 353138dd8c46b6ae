"""The cost of judging a backward pass, as ratios to a plain forward and backward pass, in CPU seconds (unaffected by other load).

The network has base size and a classifier (width 768, 12 heads, random weights; batch 8, length 128, float32), Hugging Face's eager
attention, and eval mode.

- *plain*: a forward pass, the loss, and a backward pass to every parameter, without hooks; the median of five.
- *hooks*: the same with every activation and every gradient copied and then discarded.
- *full, nothing cached*, *full*, *screen*: all activations and gradients judged, before the accumulated sigma is in the cache, with
  it, and at depth screen.
"""

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from conformance import golden_of
from conformance.benchmarks.resources import Ratio, ratio, times
from conformance.benchmarks.subject import LAYERS, network
from conformance.checks.backward_passes import backward_passes_of
from conformance.implementations.hugging_face import HuggingFace
from conformance.judge import cache
from conformance.judge.depth import Depth
from conformance.judge.judge import Judge
from conformance.judge.select_arithmetic import select_arithmetic
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.results.case import Case

RESULTS = Path(__file__).with_name("cost.json")


@dataclass(frozen=True)
class Cost:
    """The measured costs.

    Attributes:
        processor: number of cores, torch's instruction set and number of threads.
        layers: number of hidden layers.
        plain_cpu: CPU seconds of the plain passes.
        tensors: number of judged tensors.
        ratios: ratios to the plain passes, by name of the measurement.
    """

    processor: str
    layers: int
    plain_cpu: float
    tensors: int
    ratios: dict[str, Ratio]


class Subject:
    """A candidate with a batch, and the operations to be measured."""

    def __init__(self, layers: int) -> None:
        """Build the candidate; the time for this is not measured."""
        checkpoint, given = network(layers, heads=("classification",), num_labels=2)
        batch = replace(given, class_labels=np.arange(given.size, dtype=np.int64) % 2)
        runner = HuggingFace("eager").prepare(checkpoint, "cpu", "float32")
        self.checkpoint, self.batch, self.model = checkpoint, batch.on("cpu"), cast(Any, runner.module)
        (self.backward,) = backward_passes_of(runner, golden_of("base", checkpoint, {"one": batch}), Case("hf-eager", "base"))

    def plain(self) -> None:
        """Run a forward and a backward pass."""
        b = self.batch
        assert b.class_labels is not None
        self.model.requires_grad_(True)
        self.model.zero_grad()
        found = self.model["bert"](b.input_ids, attention_mask=b.attention_mask, token_type_ids=b.token_type_ids)
        torch.autograd.backward(cross_entropy(self.model["classifier"](found.pooler_output), b.class_labels))

    def hooks(self) -> None:
        """Run passes that copy every activation and gradient."""
        for _ in self.backward.call():
            pass

    def judged(self, depth: Depth = "full") -> int:
        """Return the number of judged activations and gradients that pass.

        Raises:
            SystemExit: one fails, although the candidate is correct.
        """
        one = self.backward.network
        sigma = cache.cached_sigma(one, representative_hypothesis("float32").arithmetic, self.checkpoint)
        verdicts = list(select_arithmetic(Judge(one, "float32", depth=depth, sigma=sigma).judge(self.backward.call())))
        failed = [v.activation for v in verdicts if v.outcome == "fail"]
        if failed:
            raise SystemExit(f"false alarms: {failed}")
        return sum(v.outcome == "pass" for v in verdicts)


def measured(layers: int, repeats: int) -> Cost:
    """Return all costs, measured on this machine."""
    subject = Subject(layers)
    subject.plain()
    plain = times(subject.plain, 5)
    found = {"hooks": times(subject.hooks, repeats)}
    with tempfile.TemporaryDirectory() as home:
        os.environ[cache.VARIABLE] = home
        found["full, nothing cached"] = times(subject.judged, 1)
        found["full"] = times(subject.judged, repeats)
        found["screen"] = times(lambda: subject.judged("screen"), repeats)
        tensors = subject.judged("screen")
    processor = f"{os.cpu_count()} cores, torch {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    ratios = {what: ratio(each, plain) for what, each in found.items()}
    return Cost(processor, layers, round(statistics.median(cpu for _, cpu in plain), 2), tensors, ratios)


def main() -> None:
    """Measure and print the costs; `--write` saves them beside this file."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.benchmarks.gradients.cost", description=str(__doc__).split("\n", 1)[0]
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    asked = parser.parse_args()
    text = json.dumps(asdict(measured(asked.layers, asked.repeats)), indent=2)
    print(text)
    if asked.write:
        RESULTS.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
