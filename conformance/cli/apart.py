"""Cases in a process of their own: where what was run before has broken the device for this one, or where the user wants it so."""

import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol, Self

from conformance.case import Case
from conformance.devices import is_lost
from conformance.errors import FixtureError
from conformance.result import Result
from conformance.watching import tell, watched


class Work(Protocol):
    """What makes results of cases."""

    def result(self, case: Case) -> Result:
        """What comes of a case."""
        ...


class Elsewhere:
    """Makes results in another process, and in a new one wherever the device is broken for that, or the process has ended.

    Args:
        prepare: makes the work there; it is sent.
        seconds: how long a case may take; None: as long as it likes.
    """

    def __init__(self, prepare: Callable[[], Work], seconds: float | None = None) -> None:
        """Nothing is started yet."""
        self._prepare, self._seconds = prepare, seconds
        self._there: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def result(self, case: Case) -> Result:
        """What comes of a case; a crash where it ends the process, a timeout where it does not end in time.

        Raises:
            FixtureError: the process could not be made ready.
        """
        process, pipe = self._there = self._there or self._begun()
        try:
            pipe.send(case)
            result, whole = self._heard(pipe)
        except TimeoutError:
            result, whole = Result(case, "timeout", f"it had not come to an end after {self._seconds:g} s", 1), False
        except (EOFError, OSError):
            process.join()
            result, whole = Result(case, "crash", f"it ended the process that it ran in{_how(process.exitcode)}", 1), False
        if not whole:
            self.close()
        return result

    def _begun(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(self._prepare, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            pipe.recv()  # ready: what it takes to get so far is not the candidate's
        except EOFError as error:
            raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return process, pipe

    def _heard(self, pipe: Connection) -> tuple[Result, bool]:
        """The answer; what is told of progress before it is handed on."""
        end = None if self._seconds is None else time.monotonic() + self._seconds
        while True:
            if end is not None and not pipe.poll(max(end - time.monotonic(), 0.0)):
                raise TimeoutError
            first, second = pipe.recv()
            if isinstance(first, Result):
                return first, second
            tell(first, second)

    def close(self) -> None:
        """End the process, in the middle of whatever it does."""
        if self._there is not None:
            process, pipe = self._there
            process.kill()
            process.join()
            pipe.close()
            self._there = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()


def _how(code: int | None) -> str:
    """The signal that ended a process, or its exit code."""
    if code is None or code >= 0:
        return f" (exit code {code})"
    return f" ({signal.strsignal(-code) or f'signal {-code}'})"


def _answer(prepare: Callable[[], Work], pipe: Connection) -> None:
    """The other process: a result a case, and whether the device works on."""
    work = prepare()
    pipe.send("ready")
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        with watched(lambda what, done: pipe.send((what, done))):
            result = work.result(case)
        pipe.send((result, not is_lost(case.device)))
