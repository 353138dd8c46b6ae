"""What the check `training-mode` says of correct and of wrong dropouts, in each format.

False alarms: the candidates of `implementations`, and the unusual dropouts of `benchmarks.training.correct`. Detection: the
mistakes of `benchmarks.training.wrong`, each planted by hand in a real module.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.benchmarks.detection.planted.plant import DTYPES
from conformance.benchmarks.training.correct import CORRECT
from conformance.benchmarks.training.wrong import WRONG, Wrong
from conformance.checks.run import check_values
from conformance.checks.training import training_passes
from conformance.results.result import Result
from implementations.demystified import demystified
from implementations.hugging_face import hf_eager, hf_sdpa
from implementations.inner_workings import inner_workings
from implementations.making_bert import making_bert
from implementations.torch_encoder import torch_encoder

RESULTS = Path(__file__).with_name("RESULTS.md")
GOLDEN = "tiny"
IN_USE: tuple[Any, ...] = (hf_eager, hf_sdpa, making_bert, inner_workings, torch_encoder)


def judged(candidate: object, dtype: str, golden: str = GOLDEN) -> Result:
    """The check `training-mode`."""
    return check_values(candidate, golden, dtype=dtype, passes=training_passes)


def _alarms(dtype: str) -> tuple[int, int, list[str]]:
    """How many candidates and activations were judged, and which fail."""
    every = [(candidate, GOLDEN) for candidate in (*IN_USE, *CORRECT.values())] + [(demystified, "sinusoidal")]
    results = [judged(candidate, dtype, golden) for candidate, golden in every]
    activations = sum(verdict.outcome in ("pass", "fail") for result in results for verdict in result.verdicts)
    return len(every), activations, [f"{r.case}: {r.reason or r.outcome}" for r in results if r.outcome != "pass"]


def found_as(wrong: Wrong, dtype: str) -> tuple[bool, bool, bool]:
    """Whether the mistake is found, placed first where it is, and named there."""
    result = judged(wrong.candidate, dtype)
    first = next((verdict for verdict in result.verdicts if verdict.outcome == "fail"), None)
    if first is None:
        return result.outcome == "fail", False, False
    placed = first.activation == wrong.at
    names = [fault.name for fault in first.local.named] if first.local else []
    return True, placed, placed and (names == [wrong.named] or wrong.named in first.reason)


def _rendered() -> Iterator[str]:
    notes: list[str] = []
    yield f"Correct dropouts on `{GOLDEN}`, and *Demystifying BERT*'s network on `sinusoidal`; forward and backward passes:"
    yield ""
    yield "| format | candidates | activations and gradients judged | false alarms |"
    yield "| --- | --- | --- | --- |"
    for dtype in DTYPES:
        candidates, activations, failed = _alarms(dtype)
        notes += failed
        yield f"| {dtype} | {candidates} | {activations} | {len(failed)} |"
    yield ""
    yield f"{len(WRONG)} mistakes planted by hand:"
    yield ""
    yield "| format | found | placed | named |"
    yield "| --- | --- | --- | --- |"
    for dtype in DTYPES:
        found = {name: found_as(wrong, dtype) for name, wrong in WRONG.items()}
        notes += [f"{name}, {dtype}: found, placed, named: {told}" for name, told in found.items() if not all(told)]
        yield f"| {dtype} | {' | '.join(str(sum(each)) for each in zip(*found.values(), strict=True))} |"
    yield ""
    yield from (f"- {note}" for note in notes)


def main() -> None:
    """Print the tables, or write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for line in _rendered():
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        command = "Made by `python -m conformance.benchmarks.training --write`."
        RESULTS.write_text("\n".join(["# Training mode", "", command, "", *lines]).rstrip() + "\n", "utf-8")
