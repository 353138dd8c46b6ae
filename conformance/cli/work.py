"""Computation of the results of cases: the candidate runs in a worker or in this process, and is judged in this process."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from conformance.candidates import registry
from conformance.candidates.recorded_trace import trace_of
from conformance.candidates.registry import Implementation, load_implementation
from conformance.checks.check import Request
from conformance.checks.run_check import run_check
from conformance.cli.run_options import RunOptions
from conformance.errors import CandidateNameError, ConformanceError
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.results.case import Case
from conformance.results.result import Result


def results_in(worker: WorkerProcess | None, options: RunOptions, runs: int) -> Callable[[Case], Result]:
    """Return the function that computes the result of a case of one candidate, with known failures applied.

    The candidate runs in the worker, or in this process if there is none. The result is a crash if the candidate ends the worker,
    and a timeout if it exceeds its time. `runs` is the number of cases among which the false-alarm probability is shared.
    """
    load = loading_in(worker) if worker else load_implementation

    def result_of(case: Case) -> Result:
        if worker:
            worker.renew()
        declared = [entry for entry in options.known if entry.matches(case)]
        golden, asked = options.goldens[case.golden] or case.golden, (runs, options.plan)
        return run_check(Request(case, case.implementation, golden, *asked, (), options.require, declared, load))

    return result_of


def loading_in(worker: WorkerProcess) -> Callable[[str], Implementation]:
    """Return a cached function that loads a candidate by name: in the worker, or here for recorded traces, which run no code."""
    return cache(lambda name: trace_of(name) or RemoteCandidate(worker, name))


def in_a_worker(request: Request) -> Result:
    """Run a request with the candidate in a worker, and return the result."""
    with WorkerProcess(CandidateWork) as worker:
        return run_check(replace(request, load=loading_in(worker)))


def is_instrumented(worker: WorkerProcess | None, name: str) -> bool:
    """Return whether observing a candidate's activations may change how it is run, as for exported programs.

    The candidate is loaded in the worker, or in this process if there is none.

    Raises:
        CandidateNameError: there is no candidate of that name.
    """
    try:
        candidate = loading_in(worker)(name) if worker else load_implementation(name)
        return candidate.is_instrumented if isinstance(candidate, RemoteCandidate) else registry.is_instrumented(candidate)
    except CandidateNameError:
        raise
    except ConformanceError:  # reported when it is run
        return False
