"""A run from the command line: cases, progress, results file, report and exit code."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from conformance.checks.known_failures import require_matches
from conformance.checks.recording import Recording
from conformance.checks.repro import FAILURES, remove_earlier_scripts
from conformance.checks.run_header import header_of
from conformance.cli.interrupts import Interrupt, raise_lost_interrupt
from conformance.cli.output import print_report, write
from conformance.cli.progress_display import progress
from conformance.cli.run_options import RunOptions, cases_of, digest, limits_of, settings_of
from conformance.cli.work import Candidates, left_of
from conformance.errors import INTERRUPTED, OutputError
from conformance.numerics.machine import measure_early
from conformance.report.run import document
from conformance.results.case import Case
from conformance.results.records import CaseRecords, Results
from conformance.results.to_records import footer

_RESULTS, _PAGE = "results.jsonl", "report.html"


def run_all(options_of: Callable[[], RunOptions], out: Path, how: str, *, jobs: int = 1, resume: bool = False) -> int:
    """Run every case, write `results.jsonl` and `report.html` to a folder, print the report, and return the exit code.

    If the run is resumed, the cases whose results are already in `results.jsonl` are skipped. No candidate is imported in this
    process, unless the options say `in_process`. Its output goes to standard error in either case. With several `jobs`, that many
    processes call `options_of` and compute the results.
    """
    options = options_of()
    measure_early(options.device)
    with Candidates(options) as candidates:
        cases = cases_of(options, candidates.is_instrumented)
        require_matches(options.known, cases)
        candidates.runs = len(cases)
        recording = _recording(options, cases, out, resume=resume)
        recorded = recording.recorded
        left = [case for case in cases if case not in recorded]
        if recorded:
            print(f"resumed: {len(recorded)} checks are already in {recording.path}, {len(left)} remain", file=sys.stderr)
        try:
            with recording, progress(len(left)) as display, _computing(candidates, options_of, jobs, left, out) as records_of:
                for case in left:
                    with display.case(case):
                        records = records_of(case)
                        recording.add(records)
                    display.ended(records.check.outcome, records.check.seconds)
                    raise_lost_interrupt()
        except (KeyboardInterrupt, OutputError) as why:
            print_report(document(recording.unfinished), how)
            interrupted = isinstance(why, KeyboardInterrupt)
            count = f"{len(recording.recorded)} of {len(cases)} checks are in {recording.path}"
            print(
                f"{'interrupted' if interrupted else why}; {count}; the same command with --resume runs the rest", file=sys.stderr
            )
            return why.exit_code if isinstance(why, Interrupt | OutputError) else INTERRUPTED
    return _reported(recording.results, out, how, recording.require_unchanged)


def _computing(
    candidates: Candidates, options_of: Callable[[], RunOptions], jobs: int, cases: Sequence[Case], out: Path
) -> AbstractContextManager[Callable[[Case], CaseRecords]]:
    """Return the context whose function returns the records of a case; scripts that show failures are left in the folder `out`."""
    folder = out.resolve() / FAILURES
    if jobs == 1:
        return nullcontext(lambda case: left_of(candidates.result(case), folder))
    from conformance.cli.jobs import in_processes

    return in_processes(options_of, jobs, cases, candidates.runs, folder)


def _recording(options: RunOptions, cases: Sequence[Case], out: Path, *, resume: bool) -> Recording:
    """Open the results file of a run. Remove an earlier page and, unless this run resumes, the scripts of earlier failures."""
    path = out.resolve() / _RESULTS
    header = header_of(
        options.device,
        options.goldens,
        options.plan,
        digest(cases),
        list(dict.fromkeys(case.implementation for case in cases)),
        len(cases),
        settings_of(options),
        limits_of(options),
    )
    recording = Recording(path, header, resume=resume)
    with suppress(OSError):  # a folder of that name: reported when the page is written
        (out.resolve() / _PAGE).unlink(missing_ok=True)
    if not resume:
        remove_earlier_scripts(path.parent / FAILURES)
    return recording


def _reported(results: Results, out: Path, how: str, require_unchanged: Callable[[], None]) -> int:
    """Write the page of a finished run, print its report, and return the exit code: 3 if the page or the results are in no file.

    `require_unchanged` raises `OutputError` if the results file has not the results.
    """
    page, lost, report = out.resolve() / _PAGE, list[OutputError](), document(results)
    for attempt in (require_unchanged, lambda: write({page: "html"}, report)):
        try:
            attempt()
        except OutputError as error:
            lost.append(error)
    print_report(report, how)
    if how in ("pretty", "long"):
        print(f"\nresults: {out / _RESULTS}\nreport: {out / _PAGE}{_saved_failures(results, out)}", flush=True)
    for loss in lost:
        print(f"bert-conformance: {loss}", file=sys.stderr)
    return OutputError.exit_code if lost else footer(case.check for case in results.cases).exit_code


def _saved_failures(results: Results, out: Path) -> str:
    """Return a line on the folder with the scripts of this run's failures; empty if there is none."""
    folder = out / FAILURES
    if not folder.is_dir() or not any(check.outcome in ("fail", "crash") for check in results.checks):
        return ""
    return f"\nfailures: a script of each in {folder}; `bert-conformance replay {out / _RESULTS}` repeats them"
