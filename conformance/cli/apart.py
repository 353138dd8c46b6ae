"""Cases in a process of their own, once what was run before has broken the device for this one."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, Self

from conformance.case import Case
from conformance.devices import is_lost
from conformance.result import Result


class Work(Protocol):
    """What makes results of cases."""

    def result(self, case: Case) -> Result:
        """What comes of a case."""
        ...


class Elsewhere:
    """Makes results in another process, and in a new one wherever the device is broken for that, or the process ended.

    Args:
        prepare: makes the work there; it is sent.
    """

    def __init__(self, prepare: Callable[[], Work]) -> None:
        """Nothing is started yet."""
        self._prepare = prepare
        self._there: ProcessPoolExecutor | None = None

    def result(self, case: Case) -> Result:
        """What comes of a case; a crash where it ends the process."""
        if self._there is None:
            context = multiprocessing.get_context("spawn")
            self._there = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(self._prepare,))
        try:
            result, whole = self._there.submit(_answer, case).result()
        except BrokenProcessPool:
            result, whole = Result(case, "crash", "it ended the process that it ran in", 1), False
        if not whole:
            self.close()
        return result

    def close(self) -> None:
        """End the process."""
        if self._there is not None:
            self._there.shutdown()
            self._there = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()


_work: Work  # of the process that is asked


def _begin(prepare: Callable[[], Work]) -> None:
    global _work
    _work = prepare()


def _answer(case: Case) -> tuple[Result, bool]:
    """What comes of a case, and whether the device works on."""
    result = _work.result(case)
    return result, not is_lost(case.device)
