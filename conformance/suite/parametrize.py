"""Parametrization of a user's own test by the suite's checks: one test id per check, candidate, golden, device and dtype.

@parametrize_with_checks([my_bert])
def test_my_bert(check): check()
"""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from conformance.candidates.lookup import require_known
from conformance.candidates.recorded_trace import trace_of
from conformance.candidates.registry import name_of
from conformance.checks.attached_examples import examples_of
from conformance.checks.catalogue import CHECKS, named
from conformance.checks.check import Check
from conformance.checks.known_failures import KnownFailure, matched, read
from conformance.checks.run_check import run_check
from conformance.errors import ConformanceError, UsageError
from conformance.goldens.manifest import DEFAULT_GOLDENS, located, manifest
from conformance.names import listed
from conformance.numerics.devices import require_name
from conformance.numerics.formats import format_named
from conformance.results.case import Case
from conformance.suite.pytest_session import plan, record, start_recording


class ConformanceFailure(AssertionError):
    """A candidate does not conform; the message is the report of the check."""


class CheckError(Exception):
    """A check could not be run: a name is unknown, the results file cannot be opened, or a fixture or the harness is broken.

    It is never a known failure.
    """


@dataclass(frozen=True)
class BoundCheck:
    """A check bound to a candidate and a case; calling it runs the check and passes, skips or fails as pytest does.

    Attributes:
        runs: number of checks that share the false-alarm probability.
        known: known failures that apply to the case.
        asking: the test function that calls the check; its `@example`s are tried first.
    """

    check: Check
    implementation: Any = field(repr=False)
    case: Case
    runs: int
    known: tuple[KnownFailure, ...] = ()
    asking: Callable[..., Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the check and its case in a line, as pytest prints before each failure."""
        return f"<check {self.case}>"

    def __call__(self) -> None:
        """Run the check.

        Raises:
            ConformanceFailure: the candidate does not conform; the message is the report.
            CheckError: the check could not be run.

        A skipped check and a known failure raise pytest's own exceptions, with the reason.
        """
        __tracebackhide__ = True
        from conformance.checks.known_failures import apply_known_failures

        try:
            start_recording()
        except ConformanceError as error:
            raise CheckError(str(error)) from None
        case, examples = self.case, examples_of(self.asking, self.check.name)
        result = run_check(self.check, self.implementation, case.golden, case.device, case.dtype, self.runs, plan(), examples)
        result = apply_known_failures(result, self.implementation, self.known)
        record(result)
        if result.outcome == "skip":
            pytest.skip(result.reason)
        if result.outcome == "xfail":
            pytest.xfail(result.reason)
        if result.outcome != "pass":
            from conformance.report.representations import case_text

            raise (CheckError if result.outcome == "error" else ConformanceFailure)(case_text(result))


def bound_checks(
    implementations: Sequence[Any],
    goldens: Sequence[str] = (),
    devices: Sequence[str] = ("cpu",),
    dtypes: Sequence[str] = ("float32",),
    checks: Sequence[str] = (),
) -> list[BoundCheck]:
    """Return every check of every candidate, for arguments as of `parametrize_with_checks`.

    Raises:
        UsageError: an argument is not a list, or is empty and must not be; a name does not exist; two implementations share a name.
    """
    implementations = listed("implementations", implementations, "'my-bert'")
    devices, dtypes = listed("devices", devices, "'cpu'"), listed("dtypes", dtypes, "'float32'")
    goldens, checks = [os.fspath(g) for g in listed("goldens", goldens)], listed("checks", checks)
    selected = [named(name) for name in checks] or list(CHECKS.values())
    _require_existing([name for name in implementations if isinstance(name, str)], goldens, devices, dtypes)
    names = [name_of(i) for i in implementations]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UsageError(f"several implementations are called {', '.join(twice)}; give each a `name` of its own")
    own = {name_of(i): _of_trace(i) for i in implementations}
    found = [
        (check, implementation, Case(name_of(implementation), golden, device, dtype, check.name))
        for check in selected
        for implementation in implementations
        for golden in goldens or own[name_of(implementation)] or (manifest() if check.every_golden else DEFAULT_GOLDENS)
        for device in devices
        for dtype in dtypes
    ]
    return [BoundCheck(check, implementation, case, len(found)) for check, implementation, case in found]


def _require_existing(names: Sequence[str], goldens: Sequence[str], devices: Sequence[str], dtypes: Sequence[str]) -> None:
    """Raise `UsageError` if a name is that of no implementation, golden, device or format."""
    for name in names:
        require_known(name)
    for golden in goldens:
        if not golden.startswith("checkpoint:"):
            located(golden)
    for device in devices:
        require_name(device)
    for dtype in dtypes:
        format_named(dtype)


def _of_trace(implementation: Any) -> list[str]:
    """Return the golden on which a recorded trace was recorded; an empty list for any other candidate."""
    trace = trace_of(implementation)
    return [trace.recorded.source.golden] if trace else []


def parameters(
    bound: Sequence[BoundCheck], known_failures: Path | None = None, asking: Callable[..., Any] | None = None
) -> Iterator[Any]:
    """Yield a `pytest.param` for each check, with the known failures that apply to it and the test function that calls it."""
    named = all(isinstance(b.implementation, str) for b in bound)
    known = matched(read(known_failures), [b.case for b in bound], named=named) if known_failures else {}
    for b in bound:
        case = b.case
        yield pytest.param(
            replace(b, known=tuple(known.get(case, ())), asking=asking),
            id=f"{case.check}-{case.implementation}-{case.golden}-{case.device}-{case.dtype}",
        )


def parametrize_with_checks(
    implementations: Sequence[Any],
    *,
    goldens: Sequence[str] = (),
    devices: Sequence[str] = ("cpu",),
    dtypes: Sequence[str] = ("float32",),
    checks: Sequence[str] = (),
    known_failures: str | Path | None = None,
) -> Callable[[Any], Any]:
    """Parametrize a test function that takes `check` and calls it.

    Args:
        implementations: registered names, `module:object`, or objects.
        goldens: names of goldens; none: that of a recorded trace, else all for the values and the small ones for the contract.
        devices: torch device strings.
        dtypes: names of formats.
        checks: names of checks; none: all.
        known_failures: a TOML file (`conformance.checks.known_failures`); a relative path starts at the test file's folder.

    Returns:
        The decorator.

    Example:
        >>> @parametrize_with_checks(["hf-eager"], goldens=["tiny"], checks=["values", "padding-length"])
        ... def test(check):
        ...     check()
        >>> [mark.name for mark in test.pytestmark]
        ['parametrize']
    """
    bound = bound_checks(implementations, goldens, devices, dtypes, checks)
    beside = Path(inspect.stack()[1].filename).parent  # a relative path starts at the test file's folder
    path = beside / known_failures if known_failures else None

    def decorate(function: Callable[..., Any]) -> Any:
        return pytest.mark.parametrize("check", list(parameters(bound, path, function)))(function)

    return decorate


__all__ = ["BoundCheck", "CheckError", "ConformanceFailure", "bound_checks", "parameters", "parametrize_with_checks"]
