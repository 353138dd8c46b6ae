"""Parametrization of a user's own test by the suite's checks: one test id per check, candidate, golden, device and dtype.

@parametrize_with_checks([my_bert])
@example("padding-length", {"input_ids": [[7, 0]], "attention_mask": [[1, 0]]}, tokens=1, id=0)
def test_my_bert(check): check()

An example is tried before any that is drawn.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from conformance.candidates.lookup import require_known
from conformance.candidates.recorded_trace import trace_of
from conformance.candidates.registry import name_of
from conformance.checks.catalogue import CHECKS, named
from conformance.checks.check import Request
from conformance.checks.known_failures import read, require_matches
from conformance.checks.run_check import run_check
from conformance.errors import ConformanceError, UsageError
from conformance.goldens.manifest import DEFAULT_GOLDENS, located, manifest
from conformance.names import listed
from conformance.numerics.devices import require_name
from conformance.numerics.formats import format_named
from conformance.results.example import Example
from conformance.suite.pytest_session import plan, record, start_recording

F = TypeVar("F", bound=Callable[..., Any])


class ConformanceFailure(AssertionError):
    """A candidate does not conform; the message is the report of the check."""


class CheckError(Exception):
    """A check could not be run: a name is unknown, the results file cannot be opened, or a fixture or the harness is broken.

    It is never a known failure.
    """


@dataclass(frozen=True)
class BoundCheck:
    """A request bound to a test; calling it runs the check and passes, skips or fails as pytest does.

    Attributes:
        request: what is to be run; the plan of the session replaces its own.
        asking: the test function that calls the check; its `@example`s are tried first.
    """

    request: Request = field(repr=False)
    asking: Callable[..., Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the check and its case in a line, as pytest prints before each failure."""
        return f"<check {self.request.case}>"

    def __call__(self) -> None:
        """Run the check.

        Raises:
            ConformanceFailure: the candidate does not conform; the message is the report.
            CheckError: the check could not be run.

        A skipped check and a known failure raise pytest's own exceptions, with the reason.
        """
        __tracebackhide__ = True
        try:
            start_recording()
        except ConformanceError as error:
            raise CheckError(str(error)) from None
        attached = [kept for name, kept in getattr(self.asking, _ATTACHED, ()) if name == self.request.case.check]
        result = run_check(replace(self.request, plan=plan(), examples=attached))
        record(result)
        if result.outcome == "skip":
            pytest.skip(result.reason)
        if result.outcome == "xfail":
            pytest.xfail(result.reason)
        if result.outcome != "pass":
            from conformance.report.representations import case_text

            raise (CheckError if result.outcome == "error" else ConformanceFailure)(case_text(result))


_ATTACHED = "bert_examples"


def example(check: str, batch: Mapping[str, Any], **variation: Any) -> Callable[[F], F]:
    """Return a decorator that makes a test try this batch first when it runs the named check.

    Args:
        check: the name of the check.
        batch: the inputs of the batch, by name.
        **variation: the parameters of the check's variation of the batch.

    Raises:
        UnknownNameError: if no check has that name.
        UsageError: if `batch` is not a valid batch.

    Example:
        >>> @example("padding-length", {"input_ids": [[7, 0]], "attention_mask": [[1, 0]]}, tokens=1, id=0)
        ... def test(check):
        ...     check()
        >>> test.bert_examples[0][0]
        'padding-length'
    """
    named(check)
    attached = Example.of({"batch": batch, "variation": variation})

    def decorate(test: F) -> F:
        getattr(test, "__dict__", {}).setdefault(_ATTACHED, []).insert(0, (check, attached))
        return test

    return decorate


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
    requests = [
        Request.of(implementation, golden, device, dtype, check.name)
        for check in selected
        for implementation in implementations
        for golden in goldens or own[name_of(implementation)] or (manifest() if check.every_golden else DEFAULT_GOLDENS)
        for device in devices
        for dtype in dtypes
    ]
    return [BoundCheck(replace(request, runs=len(requests))) for request in requests]


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
    requests = [b.request for b in bound]
    declared = read(known_failures) if known_failures else []
    named = all(isinstance(request.implementation, str) for request in requests)
    require_matches(declared, [request.case for request in requests], named=named)
    for request in requests:
        case = request.case
        of_case = [entry for entry in declared if entry.matches(case)]
        yield pytest.param(
            BoundCheck(replace(request, known_failures=of_case), asking),
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


__all__ = ["BoundCheck", "CheckError", "ConformanceFailure", "bound_checks", "example", "parameters", "parametrize_with_checks"]
