"""Run one check on a candidate, also by the public function `check`; the modules of a check are imported when it runs."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conformance.checks.check import USUAL, Plan, Request
from conformance.judge import Depth

if TYPE_CHECKING:
    from conformance.goldens.golden import Golden
    from conformance.results.result import Result


def run_check(request: Request) -> "Result":
    """Run the check of a request and return its result, with a script that shows a failure; no exception is raised."""
    from conformance.checks.known_failures import apply_known_failures

    result = _judged(request, with_script=True)
    return result if request.known_failures is None else apply_known_failures(result, request)


def _judged(request: Request, *, with_script: bool) -> "Result":
    """Load the candidate, open the golden, run the check and return its result; no exception is raised."""
    from conformance.candidates.torch_state import restored
    from conformance.checks.catalogue import named
    from conformance.checks.repro import with_repro
    from conformance.results.termination import Termination, run_guarded, timed

    start, check = time.perf_counter(), named(request.case.check)
    opened = run_guarded(lambda: _opened(request, is_on_golden=not check.searches))
    if isinstance(opened, Termination):
        return opened.result(request.case, seconds=time.perf_counter() - start)
    with restored():
        result = timed(lambda: check.run(opened))
    result = replace(result, case=request.case, runs=request.runs, examples=request.plan.examples or request.plan.shared)
    return with_repro(result, opened) if with_script else result


def _opened(request: Request, *, is_on_golden: bool) -> Request:
    """Load the candidate and open the golden; return the request, with its examples among the batches of the golden on which it is.

    Raises what these raise.
    """
    from conformance.goldens.custom_golden import fits

    assert request.candidate is not None
    golden = request.golden
    fitting = (e.batch for e in request.examples if fits(e.batch, golden.checkpoint.architecture)) if is_on_golden else ()
    own = {f"example-{i}": batch for i, batch in enumerate(fitting, 1)}
    return replace(request, network=replace(golden, batches={**own, **golden.batches})) if own else request


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
        check: the name of a check, as listed by `bert-conformance explain` and in the README.
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
    from conformance.candidates.registry import is_instrumented
    from conformance.checks.catalogue import named

    network = os.fspath(golden) if isinstance(golden, os.PathLike) else golden
    asked = {"runs": runs, "plan": replace(plan, depth=depth), "require": require}
    request = Request.of(implementation, network, device, dtype, named(check).name, **asked)
    if check != "values":
        return run_check(request)
    result = _judged(request, with_script=False)  # the verdicts show what fails
    if not result.conforms or not is_instrumented(request.candidate):
        return result
    outputs = run_check(Request.of(implementation, network, device, dtype, "outputs", **asked))
    return result if outputs.conforms else outputs
