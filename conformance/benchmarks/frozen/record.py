"""What is recorded: for each run its exit code, outcome, places, names and coarse estimates; for each step its noise."""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.benchmarks.detection.bert import Candidate
from conformance.benchmarks.detection.mistakes import MISTAKES, ROWS
from conformance.benchmarks.detection.networks import network
from conformance.benchmarks.detection.score import trials
from conformance.benchmarks.frozen.candidates import IN_PROCESS, ISOLATED, SHIPPED, attribute
from conformance.checks.check import Request
from conformance.checks.judgement import check_values
from conformance.cli import main as run_command
from conformance.goldens.golden import load_golden
from conformance.judge.filters import project
from conformance.judge.judged_elements import elements_to_explain
from conformance.judge.noise import of_segment
from conformance.judge.segment import Segment
from conformance.model.checkpoint import rounded_weights
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.oracle import Network
from conformance.results.file import read_results
from conformance.results.records import ActivationRecord
from conformance.results.to_records import activation_records

# A task is a part of the record and its arguments; an entry of the record a line of the file.
Task = tuple[str, ...]
Record = dict[str, dict[str, Any]]

GOLDENS, FORMATS = ("tiny", "sinusoidal"), ("float32", "bfloat16")
NOISE_OF = ("tiny", "wide", "sinusoidal", "tanh", "token-heads", "sentence-heads", "odd-width", "position-offset")
NOISE_IN = ("float64", "float32", "bfloat16", "float16")
SECONDS = "30"  # after which a candidate that hangs is stopped


def tasks() -> Iterator[Task]:
    """Yield all parts of the record, the slow ones first."""
    yield from (("candidates", name) for name in (*ISOLATED, *SHIPPED, *IN_PROCESS))
    yield from (("noise", golden, dtype) for golden in NOISE_OF for dtype in NOISE_IN)
    alone = (trial for trial in trials(ROWS, FORMATS) if len(trial.layers) == 1)
    yield from (("mistakes", trial.name, trial.network, str(trial.layers[0]), trial.dtype) for trial in alone)


def recorded(task: Task) -> tuple[str, dict[str, Any]]:
    """Return the part of the record, and its entries."""
    warnings.simplefilter("ignore")
    kind, *arguments = task
    parts: dict[str, Callable[..., dict[str, Any]]] = {"candidates": _of_candidate, "noise": _of_noise, "mistakes": _of_mistake}
    return kind, parts[kind](*arguments)


def _of_candidate(name: str) -> dict[str, Any]:
    """Run a candidate by the command; the entries are its cases and the exit code of all."""
    where = name if name in SHIPPED else f"conformance.benchmarks.frozen.candidates:{attribute(name)}"
    options = [option for golden in GOLDENS for option in ("--golden", golden)]
    options += [option for dtype in FORMATS for option in ("--dtype", dtype)]
    options += ["--timeout", SECONDS] if name in ISOLATED else ["--in-process"]
    if name in ISOLATED:
        options = ["--golden", "tiny", "--timeout", SECONDS]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        code = run_command(["run", where, *options, "--no-cache", "-o", folder])
        cases = read_results(Path(folder) / "results.jsonl").cases
    entries: dict[str, Any] = {f"{name}: exit": [code]}
    for case in cases:
        record = case.check
        entries[f"{name}: {record.golden} {record.dtype}"] = [record.exit_code, record.outcome, _places(case.activations)]
    return entries


def _of_mistake(name: str, where: str, layer: str, dtype: str) -> dict[str, Any]:
    """Judge a mistake of the table in one layer of a network."""
    result = check_values(Request.of(Candidate([MISTAKES[name].at(int(layer))]), network(where, 1), dtype=dtype))
    return {f"{name}: {where} {dtype}": [result.outcome, _places(activation_records(result))]}


def _places(activations: Iterable[ActivationRecord]) -> dict[str, list[Any]]:
    """Return the origins, each with the names of its faults and their estimates."""
    return {
        a.activation: [[f.name, None if f.estimate is None else float(f"{f.estimate:.3g}")] for f in a.faults]
        for a in activations
        if a.role == "origin"
    }


def _of_noise(golden: str, dtype: str) -> dict[str, Any]:
    """Return, for each step, log2 of the RMS of sigma and of the bound, and of the z of a result that is a thousandth too large."""
    given = load_golden(golden)
    ((_, batch),) = given.batches.items()
    net = Network(given.checkpoint.architecture, rounded_weights(given.checkpoint, dtype), batch)
    values, hypothesis, entries = dict(net.walk()), representative_hypothesis(dtype), {}
    for name, row in net.table.items():
        if row.exact:
            continue
        segment = Segment(net, name, {parent: values[parent] for parent in row.parents})
        judged = elements_to_explain(row, batch, segment.value.shape)
        noise = of_segment(segment, hypothesis, judged)
        effect = np.where(judged, segment.value, 0.0) / 1000
        z = project(effect, effect, noise)
        sigma, bound = (_rms(np.broadcast_to(x, judged.shape)[judged]) for x in (noise.sigma, np.asarray(noise.bound)))
        entries[f"{golden} {dtype} {name}"] = [_log2(sigma), _log2(bound), _log2(z.expected_z if z else 0.0)]
    return entries


def _rms(x: Any) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def _log2(x: float) -> float | None:
    """Return log2 to a hundredth, of which a comparison allows a quarter; None for 0."""
    return round(float(np.log2(x)), 2) if x > 0 else None
