"""The public function: one implementation, put through one check on one golden."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from conformance.checks.catalogue import named
from conformance.checks.run import check_values
from conformance.checks.run_check import run
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
    """Put one implementation through one check on one golden; a frozen value, nothing is printed and nothing is raised.

    Args:
        implementation: a registered name, `module:object`, an object with `prepare`, or a function that serves as `prepare`.
        golden: a name, the folder of one that was made, or a golden of one's own (`golden_of`).
        device: what the candidate is asked for: a torch device string.
        dtype: and a format's name.
        check: the name of a check, as `bert-conformance list` and the README have them.
        require: patterns of activations (as in a shell) that must be observed.
        runs: among how many such calls the false-alarm probability of 1e-6 is shared.
        depth: `screen` judges each step's RMS and largest error alone, and looks for no names.
        plan: how examples are drawn, for a check that draws them.

    Raises:
        UnknownNameError: there is no check of that name.

    Example:
        >>> result = check("hf-eager", "tiny", dtype="bfloat16")
        >>> result.outcome, result.coverage
        ('pass', (43, 47))
        >>> check("hf-eager", "tiny", check="padding-length").outcome
        'pass'
    """
    if check == "values":
        return timed(lambda: check_values(implementation, golden, device, dtype, require=require, runs=runs, depth=depth))
    opened = os.fspath(golden) if isinstance(golden, os.PathLike) else golden
    return run(named(check), implementation, opened, device, dtype, runs, replace(plan, depth=depth), require=require)
