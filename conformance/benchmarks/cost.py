"""What judging costs, in time and memory, over the plain forward pass.

A base-sized network (width 768, 12 heads, batch 8, length 128, float32, random weights) with Hugging Face's eager attention. Time:
a judged run over the median of three plain forward passes, in one process. Memory: the difference of two processes' peak resident
sizes after the model is built, judged and plain, at 6, 12 and 24 layers.
"""

import gc
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from conformance.activations import parameter_shapes
from conformance.architecture import Architecture
from conformance.batch import Batch
from conformance.checkpoint import Checkpoint, LazyWeights, rounded_weights
from conformance.judge.judge import Judge
from conformance.judge.settle import settle
from conformance.oracle import Network
from implementations.hugging_face import HuggingFace

BATCH, LENGTH = 8, 128


def _network(layers: int) -> tuple[Checkpoint, Batch]:
    architecture = Architecture(
        vocab_size=30522,
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
    mask = np.ones((BATCH, LENGTH), np.int64)
    mask[1::2, LENGTH // 2 :] = 0
    ids = rng.integers(0, architecture.vocab_size, mask.shape)
    return Checkpoint(architecture, weights), Batch(ids, np.zeros_like(ids), mask)


def _plain(checkpoint: Checkpoint, batch: Batch) -> float:
    """Seconds of the median of three forward passes with no hooks."""
    import torch

    model = HuggingFace("eager").build(checkpoint).float().eval()["bert"]
    inputs = batch.on("cpu")
    seconds = []
    _forget_peak()
    for _ in range(3):
        start = time.perf_counter()
        with torch.no_grad():
            model(inputs.input_ids, attention_mask=inputs.attention_mask, token_type_ids=inputs.token_type_ids)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _judged(checkpoint: Checkpoint, batch: Batch) -> float:
    """Seconds of a judged run; raises if the candidate, which is correct, fails."""
    runner = HuggingFace("eager").prepare(checkpoint, "cpu", "float32")
    _forget_peak()
    start = time.perf_counter()
    network = Network(checkpoint.architecture, rounded_weights(checkpoint, "float32"), batch)
    verdicts = settle(Judge(network, "float32").judge(runner(batch.on("cpu"))))
    failed = [v.activation for v in verdicts if v.outcome == "fail"]
    if failed:
        raise SystemExit(f"false alarms: {failed}")
    return time.perf_counter() - start


def _peak(layers: int, judged: bool, out: Any) -> None:
    checkpoint, batch = _network(layers)
    (_judged if judged else _plain)(checkpoint, batch)
    out.put(_high_water_mib())


def _forget_peak() -> None:
    """Let VmHWM begin anew, so that building the model does not count (proc(5), clear_refs)."""
    gc.collect()
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5", "ascii")


def _high_water_mib() -> float:
    """VmHWM of this process; `ru_maxrss` would count what the parent held before this process became its own."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmHWM in /proc/self/status: the memory benchmark needs Linux")


def _peak_mib(layers: int, judged: bool) -> float:
    """Peak resident size of a process of its own, MiB."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=_peak, args=(layers, judged, out))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)
    return float(out.get())


def main() -> None:
    """Print the figures."""
    checkpoint, batch = _network(12)
    plain, judged = _plain(checkpoint, batch), _judged(checkpoint, batch)
    print(f"time, 12 layers: judged {judged:.1f} s, plain forward {plain:.2f} s, ratio {judged / plain:.0f}")
    for layers in (6, 12, 24):
        base, above = _peak_mib(layers, False), _peak_mib(layers, True)
        print(f"peak memory, {layers} layers: plain {base:.0f} MiB, judged {above - base:.0f} MiB above it")
