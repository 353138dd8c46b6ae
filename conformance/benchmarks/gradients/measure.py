"""Verdicts of the check `gradients` on correct and on wrong backward passes, in each format.

False alarms: every correct variant of the detection benchmark that runs its batch at once, on `tiny`, from every loss. Detection:
the mistakes of `benchmarks.gradients.wrong`, each planted in a real module. `--alarms` counts only the false alarms, at depth
screen, which takes a tenth of the time.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.benchmarks.detection.bert import DTYPES
from conformance.benchmarks.gradients.correct import CORRECT, GOLDEN
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.checks.backward_passes import backward_passes
from conformance.checks.check_values import check_values
from conformance.judge.depth import Depth
from conformance.model.gradients import is_gradient
from conformance.results.result import Result

RESULTS = Path(__file__).with_name("RESULTS.md")
ALARMS = RESULTS.with_name("ALARMS.md")


def judged(candidate: object, dtype: str, depth: Depth = "full", golden: str = GOLDEN) -> Result:
    """Return the result of the check `gradients` on a golden.

    Raises:
        RuntimeError: the candidate was not judged.
    """
    result = check_values(candidate, golden, dtype=dtype, passes=backward_passes, depth=depth)
    if result.outcome not in ("pass", "fail"):
        raise RuntimeError(f"{result.outcome}: {result.reason}")
    return result


def origins(result: Result) -> dict[str, tuple[str, ...]]:
    """Return the activations that fail, each with the faults in its first explanation."""
    found = {}
    for verdict in result.verdicts:
        if verdict.outcome == "fail":
            explanations = verdict.local.explanations if verdict.local else ()
            found[verdict.activation] = tuple(fault.name for fault in explanations[0].faults) if explanations else ()
    return found


@dataclass(frozen=True)
class Alarms:
    """The numbers of judged variants, of their tensors and of gradients among those, and the failures, in one format."""

    variants: int
    tensors: int
    gradients: int
    failed: tuple[str, ...]


def alarms(dtype: str, depth: Depth = "full") -> Alarms:
    """Judge every correct variant."""
    variants, tensors, gradients, failed = 0, 0, 0, []
    for name, candidate in CORRECT.items():
        if dtype in candidate.variant.dtypes:
            result = judged(candidate, dtype, depth)
            found = [v for v in result.verdicts if v.outcome in ("pass", "fail")]
            variants += 1
            tensors += len(found)
            gradients += sum(is_gradient(v.activation) for v in found)
            if result.outcome != "pass":
                failed.append(f"{name}, {dtype}: {result.reason or result.outcome}")
    return Alarms(variants, tensors, gradients, tuple(failed))


@dataclass(frozen=True)
class Detected:
    """The numbers of mistakes found, of those placed at exactly the wrong steps, and of those named there, in one format."""

    found: int
    placed: int
    named: int
    notes: tuple[str, ...]


def detected(dtype: str) -> Detected:
    """Judge every planted mistake."""
    found, placed, named, notes = 0, 0, 0, []
    for name, wrong in WRONG.items():
        where = origins(judged(WithWrongBackward(wrong), dtype, golden=wrong.golden))
        found += bool(where)
        placed += set(where) == set(wrong.at)
        is_named = where == dict.fromkeys(wrong.at, (wrong.named,))
        named += is_named
        if not is_named:
            notes.append(f"{name}, {dtype}: {where}")
    return Detected(found, placed, named, tuple(notes))


def _correct(formats: Sequence[str], depth: Depth) -> Iterator[str]:
    notes: list[str] = []
    yield f"Correct backward passes on `{GOLDEN}`, from every loss, at depth {depth}:"
    yield ""
    yield "| format | variants | tensors judged | gradients among them | false alarms |"
    yield "| --- | --- | --- | --- | --- |"
    for dtype in formats:
        found = alarms(dtype, depth)
        notes += found.failed
        yield f"| {dtype} | {found.variants} | {found.tensors} | {found.gradients} | {len(found.failed)} |"
    yield ""
    yield from (f"- {note}" for note in notes)


def _rendered(formats: Sequence[str]) -> Iterator[str]:
    notes: list[str] = []
    yield from _correct(formats, "full")
    yield f"{len(WRONG)} mistakes planted by hand:"
    yield ""
    yield "| format | found | placed | named |"
    yield "| --- | --- | --- | --- |"
    for dtype in formats:
        wrong = detected(dtype)
        notes += wrong.notes
        yield f"| {dtype} | {wrong.found} | {wrong.placed} | {wrong.named} |"
    yield ""
    yield from (f"- {note}" for note in notes)


def main() -> None:
    """Print the tables; `--write` also saves them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    parser.add_argument("--alarms", action="store_true", help=f"correct ones alone, at depth screen; into {ALARMS.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for line in _correct(arguments.formats, "screen") if arguments.alarms else _rendered(arguments.formats):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        options = f"{'--alarms ' if arguments.alarms else ''}--formats {' '.join(arguments.formats)} --write"
        command = f"Made by `python -m conformance.benchmarks.gradients {options}`."
        text = "\n".join(["# Backward passes", "", command, "", *lines]).rstrip() + "\n"
        (ALARMS if arguments.alarms else RESULTS).write_text(text, "utf-8")
