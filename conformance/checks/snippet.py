"""A script that shows a failure from a candidate, its weights, one or more batches and numbers, without the suite's checks.

It loads the candidate by the name of a registered implementation, a file, a command, or an object of a module.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.candidates.lookup import described_by, registered_origin
from conformance.candidates.registry import load_implementation
from conformance.checks.candidate_device import inputs_device
from conformance.errors import ConformanceError
from conformance.goldens.custom_golden import PREFIX
from conformance.model.batch import Batch
from conformance.names import printable, printable_lines
from conformance.results.case import Case
from conformance.results.example import Example, LawBroken, Location, Run
from conformance.results.result import Counterexample

BEGIN = "# This script shows a failure without the checks of bert-conformance.\n"  # first line of every script
_ABOUT = 100  # number of lines of the failure's description; enough for more than the innermost part of a traceback


def snippet(case: Case, implementation: str | Any, found: Counterexample, reason: str) -> str:
    """Return the Python source of a script that shows a failure."""
    broken = found.broken or LawBroken(reason)
    about = printable_lines(f"{case}: {reason}".strip())
    about = [*about[:_ABOUT], f"In a test, above parametrize_with_checks: {decorator(case, found.example)}"]
    lines = [BEGIN.rstrip(), *(f"# {line}".rstrip() for line in about), "", *_imports(case, implementation, found, broken), ""]
    if broken.script:
        return "\n".join([*lines, *broken.script]) + "\n"
    runs = list(found.runs.values()) or [Run(found.example.batch, {})]
    device = inputs_device(implementation, case.device)
    lines += _prepared(case, found.network, device, masks=any(run.mask for run in runs), afresh=any(run.afresh for run in runs))
    if broken.watch:
        lines += _watched(runs[0], broken.watch, device)
    elif broken.place and len(runs) > 1:
        lines += _two_runs(runs, broken.place, broken.allowed)
    elif broken.place:
        lines += _one_run(runs[0], broken.place, broken.allowed)
    elif broken.claim:
        lines += [f"assert {broken.claim}, {reason!r}"]
    elif broken.raises:
        *before, refused = map(_called, runs)
        lines += [*before, "try:", f"    {refused}", "except Exception as error:", '    print("refused:", error)']
        lines += ["else:", f"    raise SystemExit({reason!r})"]
    else:
        lines += [_called(run) for run in runs]
        if not found.crashes:
            lines += ["# What is wrong is seen by looking into it, which this script does not do.", f"raise SystemExit({reason!r})"]
    return "\n".join(lines) + "\n"


def decorator(case: Case, found: Example) -> str:
    """Return the line `@conformance.example(...)`; the qualified name cannot clash with other names in the file."""
    plain = found.plain()
    varied = "".join(f", {name}={value!r}" for name, value in plain["variation"].items())
    return f"@conformance.example({case.check!r}, {plain['batch']!r}{varied})"


def _imports(case: Case, implementation: str | Any, found: Counterexample, broken: LawBroken) -> Iterator[str]:
    network = found.network
    loader = "load_directory" if network.startswith(PREFIX) else "load_golden"
    if "random.getstate" in broken.watch:
        yield "import random"
    yield "import sys"
    if network.startswith(PREFIX):
        yield "from pathlib import Path"
    if "np." in broken.watch:
        yield "import numpy as np"
    if "torch." in broken.watch + broken.claim or any(run.mask for run in found.runs.values()):
        yield "import torch"
    yield 'sys.path.insert(0, "")  # modules in the current folder can be imported'
    yield f"from conformance import Batch, {loader}, load_implementation"
    if name := loadable(case.implementation, implementation):
        yield f"candidate = load_implementation({name!r})"
    else:
        yield f"candidate = load_implementation(...)  # {printable(case.implementation)}: no module holds it by a name; insert it"


_PREPARED = ["runner = prepared()"]


def _prepared(case: Case, network: str, device: str, *, masks: bool, afresh: bool) -> list[str]:
    own = network.startswith(PREFIX)
    checkpoint = f"load_directory(Path({network.removeprefix(PREFIX)!r}))" if own else f"load_golden({network!r}).checkpoint"
    call = [
        'def run(mask="int64", **inputs):',
        f"    batch = Batch.of(inputs).on({device!r})",
        "    batch.attention_mask = batch.attention_mask.to(getattr(torch, mask))",
        "    return dict(runner(batch))",
    ]
    plain = ["def run(**inputs):", f"    return dict(runner(Batch.of(inputs).on({device!r})))"]
    prepare = f"candidate.prepare({checkpoint}, {case.device!r}, {case.dtype!r})"
    runner = ["def prepared():", f"    return {prepare}", "", "", *_PREPARED] if afresh else [f"runner = {prepare}"]
    return [*runner, "", "", *(call if masks else plain), "", ""]


def _inputs(batch: Batch) -> str:
    return ", ".join(f"{name}={array.tolist()}" for name, array in batch.arrays().items())


def _called(run: Run) -> str:
    mask = f"mask={run.mask!r}, " if run.mask else ""
    return f"run({mask}{_inputs(run.batch)})"


def _element(place: Location, index: tuple[int, ...]) -> str:
    return f"[{place.activation!r}]{list(index)}" if index else f"[{place.activation!r}]"


def _two_runs(runs: list[Run], place: Location, allowed: float) -> list[str]:
    first, *between, second = runs
    return [
        f"first = float({_called(first)}{_element(place, place.first)})",
        *(line for run in between for line in (*_PREPARED[: run.afresh], _called(run))),
        *_PREPARED[: second.afresh],
        f"second = float({_called(second)}{_element(place, place.second)})",
        'print(f"{first:.9g} and {second:.9g} differ by {abs(first - second):.3g}")',
        f"assert abs(first - second) <= {allowed!r}  # the largest difference that rounding explains",
    ]


def _one_run(run: Run, place: Location, allowed: float) -> list[str]:
    return [
        "# What is expected was computed by the oracle from the candidate's own inputs to this activation.",
        f"found, expected = float({_called(run)}{_element(place, place.first)}), {place.values[1]!r}",
        'print(f"{found:.9g}, expected {expected:.9g}, off by {abs(found - expected):.3g}")',
        f"assert abs(found - expected) <= {allowed!r}  # the largest difference that rounding explains",
    ]


def _watched(run: Run, watch: str, device: str) -> list[str]:
    return [
        f"batch = Batch.of(dict({_inputs(run.batch)})).on({device!r})",
        f"before = {watch}",
        "dict(runner(batch))",
        f"after = {watch}",
        "print(before, after)",
        "assert before == after",
    ]


def loadable(name: str, implementation: str | Any) -> str:
    """Return what `load_implementation` loads the candidate from in any folder; an empty text if no module holds it by a name."""
    described = described_by(name)
    if described:
        return described
    module, colon, path = origin(name, implementation).partition(":")
    return f"{Path(module).resolve()}:{path}" if module.endswith(".py") else f"{module}{colon}{path}"


def from_any_folder(name: str) -> str:
    """Return the name of a candidate with the absolute path of its file, if it begins with one; other names are unchanged."""
    file, colon, path = name.partition(":")
    return f"{Path(file).resolve()}{colon}{path}" if file and Path(file).is_file() else name


def origin(name: str, implementation: str | Any) -> str:
    """Return `module:name` of a candidate: its registered origin, else the module that holds it, else an empty text.

    `implementation` is the candidate as requested: that name, or an object with that name.
    """
    known = registered_origin(name) or (name if ":" in name else "")
    if isinstance(implementation, str):
        return known
    try:
        if known and load_implementation(name) is implementation:
            return known
    except ConformanceError:
        pass
    return _origin(implementation)


def _origin(candidate: Any) -> str:
    """Return `module:name` of an object that an imported module holds under a public name; otherwise an empty text."""
    for module, holder in list(sys.modules.items()):
        for name, value in list(vars(holder).items()) if holder is not None and hasattr(holder, "__dict__") else ():
            if value is candidate and not name.startswith("_"):
                return f"{module}:{name}"
    return ""
