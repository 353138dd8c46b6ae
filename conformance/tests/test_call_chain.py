"""The path of one batch in the package's docstring: every name exists, and a run calls each step from the step above it."""

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

import conformance
from conformance.cli import main
from conformance.tests.planted_mistakes import Planted, epsilon

CALLS = "BERT_CONFORMANCE_TEST_CALLS"  # environment variable: the file to which both processes append their calls
CONDITIONAL = {18}  # steps that a run without unexposed layers does not take


@dataclass(frozen=True)
class Step:
    number: int
    depth: int
    names: tuple[str, ...]
    in_worker: bool


def steps() -> list[Step]:
    found = re.findall(r"^(\d+)\.( +)(.*?)(?=^\d+\. |\Z)", conformance.__doc__ or "", re.MULTILINE | re.DOTALL)
    return [
        Step(int(n), len(n) + len(space), tuple(re.findall(r"`([a-z_]+(?:\.\w+)+)`", text)), text.startswith("Worker"))
        for n, space, text in found
    ]


def resolved(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(["conformance", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def codes(thing: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of all functions of a class or a module."""
    if isinstance(thing, type | ModuleType):
        for member in vars(thing).values():
            if not isinstance(member, type | ModuleType) and callable(member):
                yield from codes(member)
    elif inspect.isfunction(inspect.unwrap(thing)):
        yield inspect.unwrap(thing).__code__


def chain_codes() -> Mapping[CodeType, set[int]]:
    """Return the numbers of the steps that name each function."""
    found: dict[CodeType, set[int]] = {}
    for step in steps():
        for name in step.names:
            for code in codes(resolved(name)):
                found.setdefault(code, set()).add(step.number)
    return found


def recorder(path: Path) -> Callable[[FrameType, str, object], None]:
    """Return a profile function that appends each pair of a called step and a step that is in progress, once."""
    known, written = chain_codes(), set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code not in known:
            return
        called, above = known[frame.f_code], frame.f_back
        while above is not None:
            for pair in {(number, other) for number in called for other in known.get(above.f_code, ())} - written:
                written.add(pair)
                with path.open("a") as file:
                    file.write(f"{pair[0]} {pair[1]}\n")
            above = above.f_back

    return profile


class Recorded(Planted):
    """A candidate with a mistake that records the calls in its worker, from the preparation on."""

    def prepare(self, checkpoint: Any, device: str, dtype: str) -> Any:
        if CALLS in os.environ:
            profile = recorder(Path(os.environ[CALLS]))
            threading.setprofile(profile)
            sys.setprofile(profile)
        return super().prepare(checkpoint, device, dtype)


candidate = Recorded(epsilon(0))


def test_there_are_at_most_25_steps_in_order() -> None:
    assert [step.number for step in steps()] == list(range(1, len(steps()) + 1))
    assert 10 < len(steps()) <= 25


@pytest.mark.parametrize("step", steps(), ids=lambda step: str(step.number))
def test_every_name_of_a_step_exists(step: Step) -> None:
    assert step.names
    for name in step.names:
        resolved(name)


def test_a_run_calls_each_step_from_the_step_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv(CALLS, str(calls))
    before = sys.getprofile()
    sys.setprofile(recorder(calls))
    try:
        assert main(["run", "-i", f"{__name__}:candidate", "--golden", "tiny", "--out", str(tmp_path)]) == 1
    finally:
        sys.setprofile(before)
    called = {(int(step), int(above)) for step, above in map(str.split, calls.read_text().splitlines())}
    taken = {number for pair in called for number in pair}
    above: list[Step] = []
    for step in steps():
        above = [other for other in above if other.depth < step.depth]
        callers = [other.number for other in above if other.in_worker == step.in_worker]
        if step.number not in CONDITIONAL:
            assert step.number in taken, f"step {step.number} is not taken"
            assert not callers or (step.number, callers[-1]) in called, f"step {step.number} is not called from step {callers[-1]}"
        above.append(step)
