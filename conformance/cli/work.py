"""A case's result: the candidate is in its worker, or here; it is judged in the process that asks."""

from collections.abc import Callable
from functools import cache

from conformance.candidates.recorded import trace_of
from conformance.candidates.registry import Implementation, load
from conformance.checks.apply_known_failures import apply_known_failures
from conformance.checks.catalogue import CHECKS
from conformance.checks.published import CHECK, check_published, published_of
from conformance.checks.replay import Failure, run_again
from conformance.checks.run_check import run
from conformance.cli.session import Session
from conformance.errors import ConformanceError
from conformance.isolation.process import WorkerProcess
from conformance.isolation.remote import RemoteCandidate
from conformance.isolation.serve import CandidateWork
from conformance.numerics.machine import measure_early
from conformance.results.case import Case
from conformance.results.result import Result


class Work:
    """Results of a session's cases, made in this process.

    Args:
        session: what is to be run.
        runs: among how many cases the false-alarm probability is shared.
        load: returns a candidate by its name.
    """

    def __init__(self, session: Session, runs: int, load: Callable[[str], Implementation] = load) -> None:
        """Measure the machine, before a candidate's import can change torch."""
        self._session, self._runs, self._load = session, runs, load
        measure_early(session.device)

    def result(self, case: Case) -> Result:
        """The result of a case, known failures applied."""
        known = [entry for entry in self._session.known if entry.matches(case)]
        return apply_known_failures(self._result(case), case.implementation, known, self._load)

    def _result(self, case: Case) -> Result:
        session, own = self._session, self._session.goldens[case.golden]
        published = published_of(own) if own else None
        if case.check == CHECK and own and published:
            return check_published(case.implementation, own, published, case.device, case.dtype, self._runs, self._load)
        return run(
            CHECKS[case.check],
            case.implementation,
            own or case.golden,
            case.device,
            case.dtype,
            self._runs,
            session.plan,
            require=session.require,
            load=self._load,
        )


class IsolatedWork:
    """Results of a candidate's cases, while it is in a worker."""

    def __init__(self, session: Session, runs: int, worker: WorkerProcess) -> None:
        """Nothing is loaded yet."""
        self._worker = worker
        self._work = Work(session, runs, loading_in(worker))

    def result(self, case: Case) -> Result:
        """The result of a case: a crash where it ends the worker, a timeout where the candidate does not end in time."""
        self._worker.renew()
        return self._work.result(case)


def loading_in(worker: WorkerProcess) -> Callable[[str], Implementation]:
    """A function that loads a candidate by its name, once: in the worker; here if it is a recorded trace, which runs nothing."""
    return cache(lambda name: trace_of(name) or RemoteCandidate(worker, name))


def in_a_worker(failure: Failure) -> Result:
    """A failure that is run again, the candidate in a worker."""
    with WorkerProcess(CandidateWork) as worker:
        return run_again(failure, loading_in(worker))


def is_instrumented(worker: WorkerProcess | None, name: str) -> bool:
    """Whether to look into the candidate may change how it is run, as of an exported program; it is asked in the worker, if any."""
    try:
        candidate = loading_in(worker)(name) if worker else load(name)
        return candidate.is_instrumented if isinstance(candidate, RemoteCandidate) else hasattr(candidate, "unobserved")
    except ConformanceError:  # reported when it is run
        return False
