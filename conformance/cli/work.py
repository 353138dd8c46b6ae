"""A case's result, and where it is made: the candidate in its worker, the judgement in the process that asks.

A law may look into the candidate's module, and is made in the worker, unless it has the oracle for a reference.
"""

import time
from collections.abc import Callable
from functools import cache, partial

from conformance.candidates.registry import Implementation, load
from conformance.checks.apply_known_failures import apply_known_failures, expected
from conformance.checks.catalogue import CHECKS
from conformance.checks.published import CHECK, check_published, published_of
from conformance.checks.replay import Failure, run_again
from conformance.checks.run_check import entry_point, run
from conformance.cli.cases import checks_of
from conformance.cli.session import Session
from conformance.errors import ConformanceError
from conformance.isolation.messages import Do
from conformance.isolation.process import WorkerProcess
from conformance.isolation.remote import RemoteCandidate, asked
from conformance.isolation.serve import CandidateWork
from conformance.numerics.formats import Array
from conformance.numerics.machine import measure_early
from conformance.results.case import Case
from conformance.results.result import Result
from conformance.results.termination import termination_of


class Work:
    """Results of a session's cases, made in this process.

    Args:
        session: what is to be run.
        runs: among how many cases the false-alarm probability is shared.
        load: how a candidate is had by its name.
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
        self._session, self._worker = session, worker
        self._here = Work(session, runs, cache(lambda name: RemoteCandidate(worker, name)))

    def result(self, case: Case) -> Result:
        """The result of a case: a crash where it ends the worker, a timeout where the candidate does not end in time."""
        self._worker.renew()
        return self._inside(case) if _looks_inside(case) else self._here.result(case)

    def _inside(self, case: Case) -> Result:
        found: list[object] = []
        start = time.perf_counter()
        ended = termination_of(lambda: found.append(asked(self._worker, case)))
        if ended is None:
            (result,) = found
            assert isinstance(result, Result)
            return result
        seconds = time.perf_counter() - start
        return expected(Result(case, ended.outcome, ended.reason, ended.exit_code, seconds=seconds), self._session.known)


class SearchingWork(CandidateWork):
    """The work of a worker that holds a candidate, and searches for examples on which it fails."""

    def __init__(self, prepare: Callable[[], Session], runs: int, parameter: Callable[[str], Array]) -> None:
        """`prepare` makes the session anew, where a check searches."""
        super().__init__(parameter)
        session = prepare()
        self._searches = Work(session, runs) if any(check.searches for check in checks_of(session.checks)) else None

    def answer(self, question: object) -> object:
        """The result of a case of a check that searches; else what the candidate answers."""
        if isinstance(question, Case):
            assert self._searches is not None
            return self._searches.result(question)
        return super().answer(question)


def in_a_worker(failure: Failure) -> Result:
    """A failure that is run again, in a worker; `CandidateCrash` where it ends that."""
    with WorkerProcess(CandidateWork) as worker:
        result = asked(worker, Do(partial(run_again, failure)))
    assert isinstance(result, Result)
    return result


def is_instrumented(worker: WorkerProcess | None, name: str) -> bool:
    """Whether to look into the candidate may change how it is run, as of an exported program; it is asked in the worker, if any."""
    try:
        return hasattr(load(name), "unobserved") if worker is None else RemoteCandidate(worker, name).is_instrumented
    except ConformanceError:  # reported when it is run
        return False


def _looks_inside(case: Case) -> bool:
    """Whether the check may look into the candidate's module: a law may, unless it has the oracle for a reference."""
    check = CHECKS.get(case.check)
    return check is not None and check.searches and not entry_point(check).by_oracle
