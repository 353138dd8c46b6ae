"""A run with several processes: each computes the results of some cases, and this process writes them in their order.

Processes are used because most of the time of judging a small network is spent in Python's interpreter, which threads of one
process cannot share.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from conformance.cli.run_options import RunOptions
from conformance.cli.work import Candidates, left_of
from conformance.errors import OutputError
from conformance.judge.threads import cores
from conformance.results.case import Case
from conformance.results.records import CaseRecords

# Seconds after which an interrupt is noticed that the system has delivered to another thread than the waiting one. It bounds a
# delay only, and no result depends on it.
_POLL = 0.2


class _Process:
    """What a process of the pool holds: the candidates of the run, once it has their options."""

    candidates: Candidates
    folder: Path
    is_busy = False


@contextmanager
def in_processes(
    options: Callable[[], RunOptions], jobs: int, cases: Sequence[Case], runs: int, folder: Path
) -> Iterator[Callable[[Case], CaseRecords]]:
    """Compute the results of cases in a pool of processes, and yield the function that waits for the result of one.

    The function raises `OutputError` if the process has ended. Processes that still compute at the end are interrupted.

    Args:
        options: returns the options of the run in each process.
        jobs: number of processes.
        cases: the cases.
        runs: number of cases of the run, among which the false-alarm probability is shared.
        folder: folder of the scripts that failures leave.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // jobs, 1)))  # the processes inherit it
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin, (options, runs, folder))
    futures = {case: executor.submit(_records_of, case) for case in cases}

    def records(case: Case) -> CaseRecords:
        while not futures[case].done():
            wait([futures[case]], _POLL)
        try:
            return futures[case].result()
        except BrokenProcessPool as error:
            raise OutputError("a process that computes results has ended") from error

    try:
        yield records
    finally:
        processes = [] if all(future.done() for future in futures.values()) else multiprocessing.active_children()
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        executor.shutdown()


def _begin(options: Callable[[], RunOptions], runs: int, folder: Path) -> None:
    """Prepare a process of the pool; the process that started it decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    _Process.candidates, _Process.folder = Candidates(options(), runs), folder


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt what is computed, or end a process that waits for work; the process that started it says so, this one nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise KeyboardInterrupt if _Process.is_busy else SystemExit


def _records_of(case: Case) -> CaseRecords:
    _Process.is_busy = True
    try:
        return left_of(_Process.candidates.result(case), _Process.folder)
    finally:
        _Process.is_busy = False
