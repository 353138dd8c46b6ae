"""Computation of the results of cases: the candidate runs in a worker or in this process, and is judged in this process."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Self

from conformance.candidates.recorded_trace import trace_of
from conformance.candidates.registry import Implementation, is_instrumented, load_implementation
from conformance.checks.check import Request
from conformance.checks.repro import leave
from conformance.checks.run_check import run_check
from conformance.cli.run_options import RunOptions
from conformance.errors import CandidateNameError, ConformanceError
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.forwarded_output import output_to_standard_error
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.results.case import Case
from conformance.results.records import CaseRecords
from conformance.results.result import Result
from conformance.results.to_records import records_of

KEPT = 4  # Number of workers that are kept until their cases run; each holds what its candidate has imported.


class Candidates:
    """The candidates of a run, each in a worker that ends when the next one is run, or in this process.

    Attributes:
        options: the options of the run.
        runs: number of cases among which the false-alarm probability is shared.
    """

    def __init__(self, options: RunOptions, runs: int = 1) -> None:
        """Store the options; no worker is started yet."""
        self.options, self.runs = options, runs
        self._workers: dict[str, WorkerProcess] = {}
        self._running = ""

    def result(self, case: Case) -> Result:
        """Compute the result of a case, with known failures applied.

        The result is a crash if the candidate ends its worker, and a timeout if it exceeds its time.
        """
        name, options = case.implementation, self.options
        declared = [entry for entry in options.known if entry.matches(case)]
        golden = options.goldens[case.golden] or case.golden
        request = Request(case, name, golden, self.runs, options.plan, (), options.require, declared)
        if options.in_process:
            with output_to_standard_error():
                return run_check(request)
        if self._running not in (name, ""):
            self._end(self._running)
        self._running = name
        worker = self._worker(name)
        worker.renew()
        return run_check(replace(request, load=loading_in(worker)))

    def is_instrumented(self, name: str) -> bool:
        """Return whether observing a candidate's activations may change how it is run, as for exported programs.

        Raises:
            CandidateNameError: there is no candidate of that name.
        """
        try:
            if self.options.in_process:
                with output_to_standard_error():
                    return is_instrumented(load_implementation(name))
            candidate = loading_in(self._worker(name))(name)
            return candidate.is_instrumented if isinstance(candidate, RemoteCandidate) else is_instrumented(candidate)
        except CandidateNameError:
            raise
        except ConformanceError:  # reported when it is run
            return False
        finally:
            if len(self._workers) > KEPT:
                self._end(name)

    def _worker(self, name: str) -> WorkerProcess:
        if name not in self._workers:
            self._workers[name] = WorkerProcess(CandidateWork, self.options.limits)
        return self._workers[name]

    def _end(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            loading_in.cache_clear()
            worker.close()

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all workers."""
        for name in list(self._workers):
            self._end(name)


@lru_cache(maxsize=1)
def loading_in(worker: WorkerProcess) -> Callable[[str], Implementation]:
    """Return a cached function that loads a candidate by name: in the worker, or here for recorded traces, which run no code."""
    return cache(lambda name: trace_of(name) or RemoteCandidate(worker, name))


def left_of(result: Result, folder: Path) -> CaseRecords:
    """Leave the script that shows a failure in a folder, and return the records of the result."""
    leave(result, folder)
    return records_of(result)


def in_a_worker(request: Request) -> Result:
    """Run a request with the candidate in a worker, and return the result."""
    with WorkerProcess(CandidateWork) as worker:
        return run_check(replace(request, load=loading_in(worker)))
