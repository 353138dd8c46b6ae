"""Run one check on a candidate; the modules of the check are imported when it runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformance.checks.check import Check, CheckRequest
from conformance.checks.search.plan import USUAL, Plan
from conformance.results.case import Case

if TYPE_CHECKING:
    from conformance.candidates.registry import Implementation
    from conformance.goldens.golden import Golden
    from conformance.results.example import Example
    from conformance.results.result import Result


def run_check(
    check: Check,
    implementation: Any,
    golden: "str | Golden",
    device: str,
    dtype: str,
    runs: int = 1,
    plan: Plan = USUAL,
    known: "Sequence[Example]" = (),
    require: Sequence[str] = (),
    load: "Callable[[Any], Implementation] | None" = None,
) -> "Result":
    """Run one check and return its result; no exception is raised.

    Args:
        check: the check.
        implementation: the candidate, as a name or an object.
        golden: the golden, as a name or an object.
        device: a torch device string.
        dtype: the name of a floating-point format.
        runs: number of such calls among which the false-alarm probability is shared.
        plan: the extent of the search and of the judgement.
        known: examples to try first.
        require: patterns of activations that must be observed.
        load: returns the candidate for a name or an object; `candidates.registry.load_implementation` by default.
    """
    from conformance.candidates import registry
    from conformance.candidates.registry import name_of
    from conformance.candidates.torch_state import restored
    from conformance.checks.repro.artifacts import with_repro
    from conformance.goldens.custom_golden import fits, open_golden
    from conformance.results.candidate_time import timed
    from conformance.results.termination import Termination, run_guarded

    case = Case(name_of(implementation), golden if isinstance(golden, str) else golden.name, device, dtype, check.name)

    def opened() -> "tuple[Implementation, Golden]":
        return (load or registry.load_implementation)(implementation), open_golden(golden) if isinstance(golden, str) else golden

    start = time.perf_counter()
    found = run_guarded(opened)
    if isinstance(found, Termination):
        return found.result(case, seconds=time.perf_counter() - start)
    candidate, subject = found
    if not check.searches:
        kept = {f"example-{i}": e.batch for i, e in enumerate(known, 1) if fits(e.batch, subject.checkpoint.architecture)}
        subject = replace(subject, batches={**kept, **subject.batches}) if kept else subject
    request, execute = CheckRequest(case, candidate, subject, runs, plan, known, require), _function(check)
    with restored():
        result = timed(lambda: execute(request))
    result = replace(result, case=case, runs=runs, examples=plan.examples or plan.shared)
    return with_repro(result, subject, candidate, implementation)


def entry_point(check: Check) -> Any:
    """Return the object that performs a check: a function of a request, or a law."""
    module, _, name = check.entry_point.partition(":")
    return getattr(import_module(f"conformance.{module}"), name)


def _function(check: Check) -> "Callable[[CheckRequest], Result]":
    from conformance.checks.execute_law import execute

    found = entry_point(check)
    return found if callable(found) else partial(execute, found)
