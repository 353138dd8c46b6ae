"""Run one check on a candidate, also by the public function `check`; the modules of a check are imported when it runs."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from conformance.checks.catalogue import named
from conformance.checks.check import USUAL, Check, CheckRequest, Plan
from conformance.judge import Depth
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

    Arguments are as in `check`, apart from `known`, examples to try first, and `load`, which returns the candidate for a name or an
    object (`candidates.registry.load_implementation` by default).
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


def check(
    implementation: str | Any,
    golden: "str | os.PathLike[str] | Golden" = "tiny",
    device: str = "cpu",
    dtype: str = "float32",
    *,
    check: str = "values",
    require: Sequence[str] = (),
    runs: int = 1,
    depth: Depth = "full",
    plan: Plan = USUAL,
) -> "Result":
    """Run one check of one implementation on one golden and return the result, a frozen value.

    Nothing is printed. Failures of the implementation are not raised; the result reports them. If the values conform and observing
    them changes how the implementation is run (compiled modules, fast paths, exported programs), the check `outputs` is run too,
    and its result is returned if the outputs do not conform.

    Args:
        implementation: a registered name, `module:object`, an object with `prepare`, or a function that serves as `prepare`.
        golden: the name of a golden, the folder of a generated golden, or a custom golden (see `golden_of`).
        device: a torch device string, passed to the candidate.
        dtype: the name of a floating-point format, passed to the candidate.
        check: the name of a check, as listed by `bert-conformance list` and in the README.
        require: shell-style patterns of activations that must be observed.
        runs: number of such calls among which the run's false-alarm probability is shared.
        depth: `full`, or `screen` to judge only the RMS and the largest error of each step, without naming mistakes.
        plan: how examples are drawn, for a check that draws them.

    Raises:
        UnknownNameError: if no check has that name.

    Example:
        >>> result = check("hf-eager", "tiny", dtype="bfloat16")
        >>> result.outcome, result.coverage
        ('pass', (43, 47))
        >>> check("hf-eager", "tiny", check="padding-length").outcome
        'pass'
    """
    from conformance.candidates.registry import is_instrumented, load_implementation
    from conformance.checks.check_values import check_values
    from conformance.results.candidate_time import timed

    opened = os.fspath(golden) if isinstance(golden, os.PathLike) else golden

    def run(name: str) -> "Result":
        return run_check(named(name), implementation, opened, device, dtype, runs, replace(plan, depth=depth), require=require)

    if check != "values":
        return run(check)
    found = timed(lambda: check_values(implementation, golden, device, dtype, require=require, runs=runs, depth=depth))
    if not found.conforms or not is_instrumented(load_implementation(implementation)):
        return found
    outputs = run("outputs")
    return found if outputs.conforms else outputs
