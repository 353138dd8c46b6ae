"""What the check `gradients` says of correct and of wrong backward passes, in each format.

False alarms: every correct variant of the detection benchmark that runs its batch at once, on `tiny`, from every loss. Detection:
the mistakes of `benchmarks.gradients.wrong`, each planted by hand in a real module.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.benchmarks.detection.planted.plant import DTYPES
from conformance.benchmarks.gradients.correct import CORRECT, GOLDEN
from conformance.benchmarks.gradients.wrong import WRONG, WithWrongBackward
from conformance.checks.backward import backward_passes
from conformance.checks.run import check_values
from conformance.model.gradients import is_gradient
from conformance.results.result import Result

RESULTS = Path(__file__).with_name("RESULTS.md")


def judged(candidate: object, dtype: str) -> Result:
    """The check `gradients`."""
    return check_values(candidate, GOLDEN, dtype=dtype, passes=backward_passes)


def origins(result: Result) -> dict[str, tuple[str, ...]]:
    """Where it fails, and by which faults each place is explained first."""
    found = {}
    for verdict in result.verdicts:
        if verdict.outcome == "fail":
            explanations = verdict.local.explanations if verdict.local else ()
            found[verdict.activation] = tuple(fault.name for fault in explanations[0].faults) if explanations else ()
    return found


@dataclass(frozen=True)
class Alarms:
    """In one format: how many variants and gradients were judged, and which fail."""

    variants: int
    gradients: int
    failed: tuple[str, ...]


def alarms(dtype: str) -> Alarms:
    """Every correct variant."""
    variants, gradients, failed = 0, 0, []
    for name, candidate in CORRECT.items():
        if dtype in candidate.variant.dtypes:
            result = judged(candidate, dtype)
            variants += 1
            gradients += sum(is_gradient(v.activation) and not v.hidden for v in result.verdicts)
            if result.outcome != "pass":
                failed.append(f"{name}, {dtype}: {result.reason or result.outcome}")
    return Alarms(variants, gradients, tuple(failed))


@dataclass(frozen=True)
class Detected:
    """In one format: how many mistakes are found, placed at exactly the steps that are wrong, and named there."""

    found: int
    placed: int
    named: int
    notes: tuple[str, ...]


def detected(dtype: str) -> Detected:
    """Every planted mistake."""
    found, placed, named, notes = 0, 0, 0, []
    for name, wrong in WRONG.items():
        where = origins(judged(WithWrongBackward(wrong), dtype))
        found += bool(where)
        placed += set(where) == set(wrong.at)
        is_named = where == dict.fromkeys(wrong.at, (wrong.named,))
        named += is_named
        if not is_named:
            notes.append(f"{name}, {dtype}: {where}")
    return Detected(found, placed, named, tuple(notes))


def _rendered(formats: Sequence[str]) -> Iterator[str]:
    notes: list[str] = []
    yield f"Correct backward passes on `{GOLDEN}`, from every loss:"
    yield ""
    yield "| format | variants | gradients judged | false alarms |"
    yield "| --- | --- | --- | --- |"
    for dtype in formats:
        correct = alarms(dtype)
        notes += correct.failed
        yield f"| {dtype} | {correct.variants} | {correct.gradients} | {len(correct.failed)} |"
    yield ""
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
    """Print the tables, or write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for line in _rendered(arguments.formats):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        command = f"Made by `python -m conformance.benchmarks.gradients --formats {' '.join(arguments.formats)} --write`."
        RESULTS.write_text("\n".join(["# Backward passes", "", command, "", *lines]).rstrip() + "\n", "utf-8")
