"""The public function `check`, which runs one check of one implementation on one golden."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.candidates.registry import is_instrumented, load_implementation
from conformance.checks.catalogue import named
from conformance.checks.check_values import check_values
from conformance.checks.run_check import run_check
from conformance.checks.search.plan import USUAL, Plan
from conformance.goldens.golden import Golden
from conformance.judge.depth import Depth
from conformance.results.candidate_time import timed
from conformance.results.result import Result


def check(
    implementation: str | Any,
    golden: str | os.PathLike[str] | Golden = "tiny",
    device: str = "cpu",
    dtype: str = "float32",
    *,
    check: str = "values",
    require: Sequence[str] = (),
    runs: int = 1,
    depth: Depth = "full",
    plan: Plan = USUAL,
) -> Result:
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
    opened = os.fspath(golden) if isinstance(golden, os.PathLike) else golden

    def run(name: str) -> Result:
        return run_check(named(name), implementation, opened, device, dtype, runs, replace(plan, depth=depth), require=require)

    if check != "values":
        return run(check)
    found = timed(lambda: check_values(implementation, golden, device, dtype, require=require, runs=runs, depth=depth))
    if not found.conforms or not is_instrumented(load_implementation(implementation)):
        return found
    outputs = run("outputs")
    return found if outputs.conforms else outputs
