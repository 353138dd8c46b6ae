"""A worker: a process of its own, in which one candidate is imported and run, and whose end is nobody else's.

It ends with the process that started it, and takes along what it has started itself.
"""

import ctypes
import math
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, Self

from conformance.cli.server import context
from conformance.errors import FixtureError
from conformance.progress import report_progress, watched
from conformance.results.case import Case
from conformance.results.result import Result

_PATIENCE = 3600.0  # seconds that one call of the system may wait at the most; then it is asked again
_GRACE = 5.0  # seconds between the end of a process's answers and its own
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Work(Protocol):
    """What a worker does."""

    def answer(self, question: Any) -> object:
        """The answer to a question; for a case its result."""

    @property
    def is_whole(self) -> bool:
        """Whether the device still works, so that the worker can go on."""


class WorkerEndedError(Exception):
    """The worker has ended without an answer."""


@dataclass(frozen=True)
class Limits:
    """What a worker may take.

    Attributes:
        seconds: how long an answer may take; None: as long as it likes.
        memory: of address space, in bytes; None: as much as there is.
    """

    seconds: float | None = None
    memory: int | None = None


class WorkerProcess:
    """Answers questions in another process, and in a new one wherever the device is broken for that, or the process has ended.

    Args:
        prepare: makes the work there; it is sent.
        limits: of the process.
    """

    def __init__(self, prepare: Callable[[], Work], limits: Limits = Limits()) -> None:
        """Nothing is started yet."""
        self._prepare, self._limits = prepare, limits
        self._there: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def result(self, case: Case) -> Result:
        """The result of a case; a crash where it ends the process, a timeout where it does not end in time.

        Raises:
            FixtureError: the process could not be made ready.
        """
        start = time.monotonic()
        try:
            found = self.ask(case)
        except TimeoutError:
            outcome, reason = "timeout", f"it had not come to an end after {self._limits.seconds:g} s"
        except WorkerEndedError as ended:
            outcome, reason = "crash", str(ended)
        else:
            assert isinstance(found, Result)
            return found
        return Result(case, outcome, reason, 1, seconds=time.monotonic() - start)  # type: ignore[arg-type]  # one of two

    def ask(self, question: object) -> object:
        """The answer to a question.

        Raises:
            TimeoutError: there was none in time; the process is ended.
            WorkerEndedError: the process ended; the text says how.
            FixtureError: the process could not be made ready.
        """
        process, pipe = self._there = self._there or self._begun()
        is_whole = False
        try:
            pipe.send(question)
            found, is_whole = self._answer(process, pipe)
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            process.join(_GRACE)
            raise WorkerEndedError(f"it ended the process that it ran in{_how(process.exitcode)}") from error
        finally:
            if not is_whole:
                self.close()
        return found

    def _begun(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        started = context()
        pipe, theirs = started.Pipe()
        start = _Start(self._prepare, self._limits.memory, os.getcwd(), dict(os.environ))
        process = started.Process(target=_serve, args=(start, theirs))  # type: ignore[attr-defined]  # every context has it
        process.start()
        theirs.close()
        try:
            pipe.recv()  # ready: what it takes to get so far is not the candidate's
        except EOFError as error:
            raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return process, pipe

    def _answer(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> tuple[object, bool]:
        """The answer, and whether the device still works; what is reported of progress before it is handed on.

        Raises:
            TimeoutError: the time is up.
            EOFError: the process has ended, though what it has started may hold its end of the pipe.
        """
        end = time.monotonic() + (math.inf if self._limits.seconds is None else self._limits.seconds)
        while True:
            ready = wait([pipe, process.sentinel], min(end - time.monotonic(), _PATIENCE))
            if pipe not in ready:
                if process.sentinel in ready:
                    raise EOFError
                if time.monotonic() >= end:
                    raise TimeoutError
                continue
            message = pipe.recv()
            if isinstance(message, _Answer):
                return message.value, message.is_whole
            report_progress(*message)

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


@dataclass(frozen=True)
class _Start:
    """What a worker begins with: it may be forked from a server that was started elsewhere, under other variables."""

    prepare: Callable[[], Work]
    memory: int | None
    folder: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class _Answer:
    """An answer, and whether the device still works."""

    value: object
    is_whole: bool


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    """It, and its group: what it has started may outlive it."""
    with suppress(OSError):  # there is no such group any more, or not yet
        if hasattr(os, "killpg") and process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _how(code: int | None) -> str:
    """The signal that ended a process, or its exit code; of one that is still there and does not answer there is neither."""
    if code is None:
        return ", or its connection"
    return f" (exit code {code})" if code >= 0 else f" ({signal.strsignal(-code) or f'signal {-code}'})"


def _serve(start: _Start, pipe: Connection) -> None:
    """The worker: an answer for each question. It ends with the process that asks."""
    _bind_to_parent()
    os.environ.clear()
    os.environ.update(start.variables)
    os.chdir(start.folder)
    if start.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (start.memory, start.memory))
    os.dup2(2, 1)  # what is printed there is no part of the report
    work = start.prepare()
    pipe.send("ready")
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        with watched(lambda what, done: pipe.send((what, done))):
            found = work.answer(question)
        pipe.send(_Answer(found, work.is_whole))


def _bind_to_parent() -> None:
    """Make a group of processes that ends with the one that asks: by a thread; on Linux by the kernel, if the server dies."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
