"""A run from the command line: cases, progress, results file, report and exit code."""

import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Self

from conformance.checks.known_failures import matched
from conformance.checks.recording import FAILURES, Recording
from conformance.checks.repro import remove_earlier_artifacts
from conformance.checks.run_header import header_of
from conformance.cli.interrupts import Interrupt, raise_lost_interrupt
from conformance.cli.output import show_results, write
from conformance.cli.progress_display import progress
from conformance.cli.run_options import RunOptions, cases_of, digest, limits_of, settings_of
from conformance.cli.work import is_instrumented, results_in
from conformance.errors import INTERRUPTED, OutputError
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.forwarded_output import output_to_standard_error
from conformance.isolation.worker_process import WorkerProcess
from conformance.numerics.machine import measure_early
from conformance.report.output_formats import REPORT_FORMATS
from conformance.results.case import Case
from conformance.results.file import ResultsFileError
from conformance.results.records import Results
from conformance.results.result import Result
from conformance.results.to_records import footer

PARTS = "parts"  # folder of the shards of a run in several processes, beside its results file
_RESULTS, _PAGE = "results.jsonl", "report.html"
KEPT = 4  # Number of workers that are kept until their cases run; each holds what its candidate has imported.


def run_all(options: RunOptions, out: Path, how: str, *, resume: bool = False) -> int:
    """Run every case, write `results.jsonl` and `report.html` to a folder, print the report, and return the exit code.

    If the run is resumed, the cases whose results are already in `results.jsonl` are skipped. No candidate is imported in this
    process, unless the options say `in_process`. Its output goes to standard error in either case.
    """
    with _Workers(options) as workers:
        return _run(options, workers, out, how, resume=resume)


def _run(options: RunOptions, workers: "_Workers", out: Path, how: str, *, resume: bool) -> int:
    measure_early(options.device)
    everything, cases = _cases(options, workers)
    recording = _recording(options, everything, len(cases), out, resume=resume)
    recorded = recording.recorded
    left = [case for case in cases if case not in recorded]
    if recorded:
        print(f"resumed: {len(recorded)} checks are already in {recording.path}, {len(left)} remain", file=sys.stderr)
    try:
        running = closing(_running(options, workers, left, len(everything)))
        with recording, progress(len(left)) as shown, running as cases_of_workers:
            for case, result_of in cases_of_workers:
                with shown.case(case):
                    result = result_of(case)
                    recording.add(result, options.goldens[case.golden])
                shown.ended(result.outcome, result.seconds)
                raise_lost_interrupt()
    except (KeyboardInterrupt, ResultsFileError) as why:
        show_results(recording.unfinished, how)
        interrupted = isinstance(why, KeyboardInterrupt)
        print(f"{'interrupted' if interrupted else why}; {_how_to_go_on(recording)}", file=sys.stderr)
        return why.exit_code if isinstance(why, Interrupt | ResultsFileError) else INTERRUPTED
    return reported(recording.results, out, how, recording.require_unchanged)


def _cases(options: RunOptions, workers: "_Workers") -> tuple[Sequence[Case], Sequence[Case]]:
    """Return all cases of the run, and those of this shard; raise `UsageError` for a known failure that matches none of them."""

    def asked_in_a_worker(name: str) -> bool:
        with workers.of(name, keep=True) as worker:
            return is_instrumented(worker, name)

    everything = cases_of(options, asked_in_a_worker)
    matched(options.known, everything)
    which, shards = options.shard
    return everything, everything[which - 1 :: shards]


def _recording(options: RunOptions, everything: Sequence[Case], count: int, out: Path, *, resume: bool) -> Recording:
    """Open the results file of a run. Remove an earlier page and, unless this run resumes, the files of earlier failures."""
    path = out.resolve() / _RESULTS
    which, shards = options.shard
    header = header_of(
        options.device,
        options.goldens,
        options.plan,
        f"{which}/{shards}",
        digest(everything),
        list(dict.fromkeys(case.implementation for case in everything)),
        count,
        settings_of(options),
        limits_of(options),
    )
    recording = Recording(path, header, resume=resume)
    with suppress(OSError):  # a folder of that name: reported when the page is written
        (out.resolve() / _PAGE).unlink(missing_ok=True)
    if not resume:
        remove_earlier_artifacts(path.parent / FAILURES)
        shutil.rmtree(path.parent / PARTS, ignore_errors=True)
    return recording


def reported(results: Results, out: Path, how: str, require_unchanged: Callable[[], None]) -> int:
    """Write the page of a finished run, print its report, and return the exit code: 3 if the page or the results are in no file.

    `require_unchanged` raises `OutputError` if the results file has not the results.
    """
    page, lost = out.resolve() / _PAGE, list[OutputError]()
    for attempt in (require_unchanged, lambda: write({page: "html"}, lambda name: REPORT_FORMATS[name].of_results(results))):
        try:
            attempt()
        except OutputError as error:
            lost.append(error)
    show_results(results, how)
    if how in ("pretty", "long"):
        print(f"\nresults: {out / _RESULTS}\nreport: {out / _PAGE}{_saved_failures(results, out)}", flush=True)
    for loss in lost:
        print(f"bert-conformance: {loss}", file=sys.stderr)
    return OutputError.exit_code if lost else footer(case.check for case in results.cases).exit_code


def _saved_failures(results: Results, out: Path) -> str:
    """Return a line on the folder with the failures of this run; empty if none was saved."""
    folder = out / FAILURES
    if not folder.is_dir() or not any(check.outcome in ("fail", "crash") for check in results.checks):
        return ""
    return f"\nfailures: {folder}: of each, a batch for `bert-conformance replay` and a script"


def _how_to_go_on(recording: Recording) -> str:
    recorded, cases = len(recording.recorded), recording.results.headers[0].cases
    return f"{recorded} of {cases} checks are in {recording.path}; the same command with --resume runs the rest"


def _running(
    options: RunOptions, workers: "_Workers", cases: Sequence[Case], runs: int
) -> Generator[tuple[Case, Callable[[Case], Result]], None, None]:
    """Yield each case with the function that computes its result, while the candidate's worker is running."""
    for name, theirs in groupby(cases, lambda case: case.implementation):
        with workers.of(name) as worker:
            result_of = results_in(worker, options, runs)
            for case in theirs:
                yield case, result_of


class _Workers:
    """The workers of a run, one for each candidate. They end when the context that this object manages is left."""

    def __init__(self, options: RunOptions) -> None:
        """Store the options; no worker is started yet."""
        self._options = options
        self._kept: dict[str, WorkerProcess] = {}
        self._stack = ExitStack()

    @contextmanager
    def of(self, name: str, *, keep: bool = False) -> Iterator[WorkerProcess | None]:
        """Open the worker of a candidate; yield None if candidates run in this process, whose output then goes to standard error.

        If `keep` is set, the worker is kept for the next call with this name, unless `KEPT` workers are kept already.
        """
        if self._options.in_process:
            with output_to_standard_error():
                yield None
            return
        worker = self._kept.pop(name, None) or self._stack.enter_context(WorkerProcess(CandidateWork, self._options.limits))
        try:
            yield worker
        finally:
            if keep and len(self._kept) < KEPT:
                self._kept[name] = worker
            else:
                worker.close()

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers that are kept."""
        self._stack.close()
