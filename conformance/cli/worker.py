"""Cases in another process: where what was run before has broken the device for this one, or where the user wants it so."""

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Protocol, Self

from conformance.errors import FixtureError
from conformance.numerics.devices import is_lost
from conformance.progress import report_progress, watched
from conformance.results.case import Case
from conformance.results.result import Result

_PATIENCE = 3600.0  # seconds that one call of the system may wait at the most; then it is asked again
_GRACE = 5.0  # seconds between the end of a process's words and its own


class Work(Protocol):
    """What makes results of cases."""

    def result(self, case: Case) -> Result:
        """What comes of a case."""
        ...


class WorkerProcess:
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
            result, whole = self._heard(process, pipe)
        except TimeoutError:
            result, whole = Result(case, "timeout", f"it had not come to an end after {self._seconds:g} s", 1), False
        except (EOFError, OSError):
            process.join(_GRACE)
            result, whole = Result(case, "crash", f"it ended the process that it ran in{_how(process.exitcode)}", 1), False
        if not whole:
            self.close()
        return result

    def _begun(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(self._prepare, theirs))
        process.start()
        theirs.close()
        try:
            pipe.recv()  # ready: what it takes to get so far is not the candidate's
        except EOFError as error:
            raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return process, pipe

    def _heard(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> tuple[Result, bool]:
        """The answer; what is reported of progress before it is handed on.

        Raises:
            TimeoutError: the time is up.
            EOFError: the process has ended, though what it has started may hold its end of the pipe.
        """
        end = time.monotonic() + (math.inf if self._seconds is None else self._seconds)
        while True:
            ready = wait([pipe, process.sentinel], min(end - time.monotonic(), _PATIENCE))
            if pipe not in ready:
                if process.sentinel in ready:
                    raise EOFError
                if time.monotonic() >= end:
                    raise TimeoutError
                continue
            first, second = pipe.recv()
            if isinstance(first, Result):
                return first, second
            report_progress(first, second)

    def close(self) -> None:
        """End the process, in the middle of whatever it does."""
        if self._there is not None:
            process, pipe = self._there
            _kill(process)
            process.join()
            pipe.close()
            self._there = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    """It, and what it has started."""
    with suppress(OSError):
        if hasattr(os, "killpg") and process.pid and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _how(code: int | None) -> str:
    """The signal that ended a process, or its exit code; of one that is still there and does not answer there is neither."""
    if code is None:
        return ", or its way to speak"
    return f" (exit code {code})" if code >= 0 else f" ({signal.strsignal(-code) or f'signal {-code}'})"


def _answer(prepare: Callable[[], Work], pipe: Connection) -> None:
    """The other process: a result a case, and whether the device works on. It ends with the one that asks."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    # What is printed there is no part of the report.
    os.dup2(2, 1)
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


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
