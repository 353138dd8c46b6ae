"""Computation of the results of cases: the candidate runs in a worker or in this process, and is judged in this process."""

from collections.abc import Callable
from functools import cache

from conformance.candidates import registry
from conformance.candidates.recorded.recorded_trace import trace_of
from conformance.candidates.registry import Implementation, load_implementation
from conformance.checks.catalogue import CHECKS, PUBLISHED
from conformance.checks.known_failures import apply_known_failures
from conformance.checks.published import check_published, published_of
from conformance.checks.replay import Failure, run_again
from conformance.checks.run_check import run_check
from conformance.cli.run_options import RunOptions
from conformance.errors import CandidateNameError, ConformanceError
from conformance.isolation.candidate_work import CandidateWork
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.worker_process import WorkerProcess
from conformance.numerics.machine import measure_early
from conformance.results.case import Case
from conformance.results.result import Result


class Work:
    """The computation of a run's results in this process.

    Args:
        options: the options of the run.
        runs: number of cases among which the false-alarm probability is shared.
        load: returns a candidate by its name.
    """

    def __init__(self, options: RunOptions, runs: int, load: Callable[[str], Implementation] = load_implementation) -> None:
        """Measure the accuracy of the machine before the import of a candidate can change torch's settings."""
        self._options, self._runs, self._load = options, runs, load
        measure_early(options.device)

    def result(self, case: Case) -> Result:
        """Return the result of a case, with known failures applied."""
        known = [entry for entry in self._options.known if entry.matches(case)]
        return apply_known_failures(self._result(case), case.implementation, known, self._load)

    def _result(self, case: Case) -> Result:
        options, own = self._options, self._options.goldens[case.golden]
        published = published_of(own) if own else None
        if case.check == PUBLISHED and own and published:
            return check_published(case.implementation, own, published, case.device, case.dtype, self._runs, self._load)
        return run_check(
            CHECKS[case.check],
            case.implementation,
            own or case.golden,
            case.device,
            case.dtype,
            self._runs,
            options.plan,
            require=options.require,
            load=self._load,
        )


class IsolatedWork:
    """The computation of the results of a candidate in a worker."""

    def __init__(self, options: RunOptions, runs: int, worker: WorkerProcess) -> None:
        """Store the options and the worker; no candidate is loaded yet."""
        self._worker = worker
        self._work = Work(options, runs, loading_in(worker))

    def result(self, case: Case) -> Result:
        """Return the result of a case: a crash if it ends the worker, a timeout if the candidate exceeds its time."""
        self._worker.renew()
        return self._work.result(case)


def loading_in(worker: WorkerProcess) -> Callable[[str], Implementation]:
    """Return a cached function that loads a candidate by name: in the worker, or here for recorded traces, which run no code."""
    return cache(lambda name: trace_of(name) or RemoteCandidate(worker, name))


def in_a_worker(failure: Failure) -> Result:
    """Run a failure again with the candidate in a worker, and return the result."""
    with WorkerProcess(CandidateWork) as worker:
        return run_again(failure, loading_in(worker))


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
