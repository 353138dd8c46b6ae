"""Run a failed check again, from the file of the failure or from a results file that contains it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from conformance.candidates.registry import Implementation, load_implementation
from conformance.checks.catalogue import PUBLISHED, named
from conformance.checks.check import Plan
from conformance.checks.published import check_published, published_of
from conformance.checks.run_check import run_check
from conformance.errors import UsageError
from conformance.goldens.custom_golden import golden_of, open_golden, recorded_as
from conformance.goldens.golden import Golden, nested
from conformance.model.batch import Batch
from conformance.model.files import parsed_json, read_safetensors, reading
from conformance.results.case import Case
from conformance.results.example import Example
from conformance.results.file import read_results
from conformance.results.records import CheckRecord, Header
from conformance.results.result import Result
from conformance.results.termination import Termination, run_guarded

FAILED = ("fail", "crash", "timeout")


@dataclass(frozen=True)
class Failure:
    """A failed check that can be run again.

    Attributes:
        case: the case, with a golden that `open_golden` accepts.
        batches: the batches to run on; if empty, those of the golden.
        variation: the parameters of the check's variation of the batch.
        require: patterns of activations that must be observed.
        runs, examples: the number of checks and of examples of each among which the false-alarm probability was shared, on which
            the limits depend.
    """

    case: Case
    batches: Mapping[str, Batch]
    variation: Mapping[str, Any] = field(default_factory=dict)
    require: Sequence[str] = ()
    runs: int = 1
    examples: int = 0


class _About(msgspec.Struct, frozen=True):
    """The metadata of a failure's file."""

    implementation: str
    golden: str
    device: str
    dtype: str
    check: str
    variation: dict[str, Any]
    require: list[str]
    runs: int = 1
    examples: int = 0


def replayed(path: Path, again: "Callable[[Failure], Result] | None" = None) -> list[Result]:
    """Run the failures in a file again and return their results.

    The result of a failure in a results file that cannot be run again has outcome `error`. `again` runs one failure, `run_again` by
    default.

    Raises:
        UsageError: if the file is neither of the two, contains no failure, or is the file of a failure that cannot be run again.
    """
    if path.suffix == ".safetensors":
        return [(again or run_again)(failure_of(path))]
    results = read_results(path)
    failed = [check for check in results.checks if check.outcome in FAILED]
    if not failed:
        raise UsageError(f"{path}: nothing failed there, so there is nothing to run again")
    return [_attempted(record, results.headers, again or run_again) for record in failed]


def _attempted(record: CheckRecord, headers: Sequence[Header], again: "Callable[[Failure], Result]") -> Result:
    found = run_guarded(lambda: again(_of_record(record, headers)))
    return found.result(record.case) if isinstance(found, Termination) else found


def failure_of(path: Path) -> Failure:
    """Return the failure that a file describes; raise `UsageError` if it is not the file of a failure."""
    with reading(path, "a saved failure", UsageError):
        arrays, metadata = read_safetensors(path, "batch/")
        about = parsed_json(metadata.get("replay"), _About)
        case = Case(about.implementation, about.golden, about.device, about.dtype, about.check)
        batches = {name: Batch.of(found) for name, found in nested(arrays, "batch").items()}
        if "example" in batches:  # the other batches are the runs derived from the example
            batches = {"example": batches["example"]}
        return Failure(case, batches, about.variation, about.require, about.runs, about.examples)


def _of_record(record: CheckRecord, headers: Sequence[Header]) -> Failure:
    case, found = record.case, record.counterexample
    if found is None:
        case = replace(case, golden=_network(record.golden, headers))
        return Failure(case, {}, require=record.require, runs=record.runs, examples=record.examples)
    case = replace(case, implementation=found.origin or case.implementation, golden=found.network)
    batches = {"example": Batch.of(found.batch)}
    return Failure(case, batches, found.variation, record.require, record.runs, record.examples)


def _network(golden: str, headers: Sequence[Header]) -> str:
    """Return a golden's name for `open_golden`; for a custom golden, the name of its folder is completed from the header."""
    sources = (header.goldens[golden].source for header in headers if golden in header.goldens)
    return next((recorded_as(golden, source) for source in sources), golden)


def run_again(failure: Failure, load: Callable[[str], Implementation] = load_implementation) -> Result:
    """Run a failed check again: a law on its example only, a judgement on the failure's batches or, without any, the golden's.

    Raises:
        UsageError: if the golden cannot be opened, the check does not exist, or no values of the golden are published.
    """
    case, golden = failure.case, open_golden(failure.case.golden)
    if case.check == PUBLISHED:
        return _published_again(failure, golden, load)
    check = named(case.check)
    again = partial(
        run_check,
        check,
        case.implementation,
        device=case.device,
        dtype=case.dtype,
        runs=failure.runs,
        require=failure.require,
        load=load,
    )
    if check.searches and "example" in failure.batches:
        example = Example(failure.batches["example"], failure.variation)
        return again(golden, plan=Plan(examples=0, shared=failure.examples), known=[example])
    if failure.batches and not check.searches:
        golden = replace(golden_of(golden.name, golden.checkpoint, failure.batches), origin=golden.origin)
    return again(golden)  # a search that failed before its first example is repeated


def _published_again(failure: Failure, golden: Golden, load: Callable[[str], Implementation]) -> Result:
    case, published = failure.case, published_of(golden)
    if published is None:
        raise UsageError(f"no values are published of {case.golden}: they are found by the name of the folder, and its sizes")
    return check_published(case.implementation, golden, published, case.device, case.dtype, failure.runs, load=load)
