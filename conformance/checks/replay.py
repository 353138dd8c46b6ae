"""Run failed checks again, from the results file that contains them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from conformance.checks.catalogue import named
from conformance.checks.check import Plan, Request
from conformance.checks.run_check import run_check
from conformance.errors import UsageError
from conformance.goldens.custom_golden import golden_of, open_golden, recorded_as
from conformance.model.batch import Batch
from conformance.results.example import Example
from conformance.results.file import read_results
from conformance.results.records import CheckRecord, Header
from conformance.results.result import Result
from conformance.results.termination import Termination, run_guarded

FAILED = ("fail", "crash", "timeout")


def replayed(path: Path, run: Callable[[Request], Result] = run_check) -> list[Result]:
    """Run the failures in a results file again and return their results.

    The result of a failure that cannot be run again has outcome `error`. `run` runs one request.

    Raises:
        UsageError: if the file is no results file, or contains no failure.
    """
    results = read_results(path)
    failed = [check for check in results.checks if check.outcome in FAILED]
    if not failed:
        raise UsageError(f"{path}: nothing failed there, so there is nothing to run again")
    return [_attempted(record, results.headers, run) for record in failed]


def _attempted(record: CheckRecord, headers: Sequence[Header], run: Callable[[Request], Result]) -> Result:
    found = run_guarded(lambda: run(request_of(record, headers)))
    return found.result(record.case) if isinstance(found, Termination) else found


def request_of(record: CheckRecord, headers: Sequence[Header] = ()) -> Request:
    """Return the request to run a failed check again: a law on its example only, a judgement on the batch of the failure.

    Without a batch, all is repeated.

    Raises:
        UsageError: if the golden cannot be opened, or the check does not exist.
    """
    case, found, check = record.case, record.counterexample, named(record.check)
    golden = open_golden(found.network if found else _network(record.golden, headers))
    case = replace(case, golden=golden.name)
    if found is None:
        return Request(case, case.implementation, golden, record.runs, require=record.require)
    name, batch = found.origin or case.implementation, Batch.of(found.batch)
    request = Request(replace(case, implementation=name), name, golden, record.runs, require=record.require)
    if check.searches:
        return replace(request, plan=Plan(examples=0, shared=record.examples), examples=[Example(batch, found.variation)])
    on_batch = golden_of(golden.name, golden.checkpoint, {"example": batch})
    return replace(request, network=replace(on_batch, origin=golden.origin))


def _network(golden: str, headers: Sequence[Header]) -> str:
    """Return a golden's name for `open_golden`; for a custom golden, the name of its folder is completed from the header."""
    sources = (header.goldens[golden].source for header in headers if golden in header.goldens)
    return next((recorded_as(golden, source) for source in sources), golden)
