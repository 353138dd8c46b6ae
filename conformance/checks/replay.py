"""Running again what a failure left behind: its file, or the results file in which it is recorded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from conformance.batch import Batch
from conformance.case import Case
from conformance.checks.catalogue import named
from conformance.checks.check import run
from conformance.errors import UsageError
from conformance.goldens.golden import Golden, nested
from conformance.goldens.own import golden_of, open_golden
from conformance.records import CheckRecord
from conformance.result import Result
from conformance.results_file import read_results
from conformance.search.example import Example
from conformance.search.plan import Plan

FAILED = ("fail", "crash")


def replayed(path: Path) -> list[Result]:
    """The results of what `path` holds: one failure, or every one of a results file.

    Raises:
        UsageError: it is neither, or nothing in it failed.
    """
    if path.suffix == ".safetensors":
        return [_of_file(path)]
    failed = [check for check in read_results(path).checks if check.outcome in FAILED]
    if not failed:
        raise UsageError(f"{path}: nothing failed there, so there is nothing to run again")
    return [_of_record(record) for record in failed]


def _of_file(path: Path) -> Result:
    try:
        with safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {})["replay"])
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- no mapping
        case = Case(about["implementation"], about["golden"], about["device"], about["dtype"], about["check"])
        batches = {name: Batch.of(found) for name, found in nested(arrays, "batch").items()}
        if "example" in batches:  # what stands beside it are the runs that were made of it
            batches = {"example": batches["example"]}
        return _again(case, batches, about["variation"], about["require"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is not what a failure leaves behind: {error!r}") from error


def _of_record(record: CheckRecord) -> Result:
    found = record.counterexample
    network = found.network if found else record.golden
    case = Case((found.origin if found else "") or record.implementation, network, record.device, record.dtype, record.check)
    batches = {"example": Batch.of(found.batch)} if found else {}
    return _again(case, batches, found.variation if found else {}, ())


def _again(case: Case, batches: Mapping[str, Batch], variation: Mapping[str, Any], require: Sequence[str]) -> Result:
    """A law on its example alone; a judgement on the batches, or on the golden's own where there are none."""
    check, golden = named(case.check), open_golden(case.golden)
    known, plan = [], Plan()  # what failed before anything was tried is searched again
    if check.searches and "example" in batches:
        known, plan = [Example(batches["example"], variation)], Plan(examples=0)
    elif batches and not check.searches:
        golden = _with(golden, batches)
    return run(check, case.implementation, golden, case.device, case.dtype, 1, plan, known, require)


def _with(golden: Golden, batches: Mapping[str, Batch]) -> Golden:
    fitting = golden_of(golden.name, golden.checkpoint, batches)
    return replace(fitting, origin=golden.origin)
