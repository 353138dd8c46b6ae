"""A worker: a process in which one candidate is imported and run; its end affects no other candidate."""

import io
import math
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from conformance.errors import CandidateEnded, CandidateFailure, CandidateTimeout, FixtureError
from conformance.isolation.confinement import bind_to_parent, kill_orphans, leave_helpers, leave_network, limit_memory
from conformance.isolation.link import Link, NoMessageError
from conformance.isolation.messages import Answer, Answered, Done, Parameter, Progress, decoded, encoded
from conformance.isolation.output import Output, to_standard_error
from conformance.isolation.server import interrupts_blocked, started_context
from conformance.model.files import SCRATCH, SHOWN, scratch_folder
from conformance.names import printable
from conformance.numerics.formats import Array
from conformance.progress import report_progress, watched

_PATIENCE = 3600.0  # seconds that one call of the system may wait at the most; then it is asked again
_GRACE = 5.0  # seconds between the end of a process's answers and its own


_WORKERS: set[int] = set()  # of this process, alive


class Work(Protocol):
    """What a worker does."""

    def answer(self, question: Any) -> "Reply":
        """The answer to a question."""

    @property
    def is_whole(self) -> bool:
        """Whether the device still works, so that the worker can go on."""


Ask = Callable[[str], Array]
Reply = tuple[Answered, Sequence[Any]]  # a message, and the NumPy arrays that come with it


@dataclass(frozen=True)
class Limits:
    """What a worker may take.

    Attributes:
        seconds: how long its answers may take together, until it is given that time again; None: as long as it likes.
        memory: of address space beyond what an idle worker has, in bytes; None: as much as there is.
        output: how many bytes of what it writes are shown.
        network: whether it may use the network; without, it cannot where the system allows to forbid it.
    """

    seconds: float | None = None
    memory: int | None = None
    output: int = 2**20
    network: bool = False


@dataclass(frozen=True)
class _Running:
    """A process, the connection to it, what it writes, and the folder of its files."""

    process: BaseProcess
    link: Link
    output: Output
    scratch: Path


class WorkerProcess:
    """Answers questions in another process; in a new one once the process has ended, or the device is broken for it.

    Args:
        prepare: makes the work there, of a function that asks here for a parameter; it is sent.
        limits: of the process.
        show: is given what it writes.
    """

    def __init__(
        self, prepare: Callable[[Ask], Work], limits: Limits = Limits(), show: Callable[[str], object] = to_standard_error
    ) -> None:
        """Nothing is started yet."""
        self._prepare, self._limits, self._show = prepare, limits, show
        self._running: _Running | None = None
        self.holds: object = None  # what the asker last had it prepare
        self.failure = CandidateFailure("nothing has run yet")  # how the last process came to its end
        self.renew()

    @property
    def process(self) -> object:
        """By what to know the process again; None: there is none."""
        return self._running and self._running.process

    def renew(self) -> None:
        """Give the worker the time of its limits again."""
        self._left = math.inf if self._limits.seconds is None else self._limits.seconds

    def ask(self, question: object, parameters: Mapping[str, Array] | None = None, most: float = 0) -> Reply:
        """The answer to a question, with arrays of at most `most` bytes; meanwhile the worker may ask for `parameters`.

        Raises:
            CandidateTimeout: there was none in time; the process is ended.
            CandidateEnded: the process ended, or said what is no answer; the text says how.
            FixtureError: the process could not be made ready.
        """
        running = self._running or self._started()
        start = time.monotonic()
        running.link.deadline = start + self._left
        try:
            running.link.send(pickle.dumps(question))
            answer, arrays = self._answer(running, parameters or {}, most)
        except TimeoutError:
            raise self._end(CandidateTimeout(f"it had not come to an end after {self._limits.seconds:g} s")) from None
        except NoMessageError as error:
            raise self._end(CandidateEnded(f"where its process answers, something else was written: {error}")) from None
        except (EOFError, OSError):
            running.process.join(_GRACE)
            how = _how(running.process.exitcode)
            raise self._end(CandidateEnded(f"it ended the process that it ran in{how}")) from None
        finally:
            self._left -= time.monotonic() - start
        if not answer.is_whole:
            self._end(CandidateEnded("what ran before has broken the device for its process"))
        return answer.value, arrays

    def _end(self, why: CandidateFailure) -> CandidateFailure:
        """End the process; returns why."""
        self.failure = why
        self.close()
        return why

    def _started(self) -> _Running:
        started = started_context()
        ours, theirs = socket.socketpair()
        written, writing = started.Pipe(duplex=False)
        scratch = scratch_folder()
        start = _Start(self._prepare, self._limits, os.getcwd(), {**os.environ, SCRATCH: str(scratch)})
        process = started.Process(target=_serve, args=(start, theirs, writing))  # type: ignore[attr-defined]  # every context has it
        with interrupts_blocked():  # a process that is sent half of what it begins with ends with a traceback
            process.start()
            _WORKERS.add(process.pid or 0)
            self._running = running = _Running(process, Link(ours), Output(written, self._limits.output, self._show), scratch)
        theirs.close()
        writing.close()
        try:
            self._answer(running, {}, 0)  # ready: what it takes to get so far is not the candidate's
        except (EOFError, OSError) as error:
            self.close()
            raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return running

    def _answer(self, running: _Running, parameters: Mapping[str, Array], most: float) -> tuple[Answer, Sequence[Any]]:
        """What it answers; what it says of progress, writes and needs before is seen to.

        Raises:
            TimeoutError: the time is up.
            EOFError: the process has ended, though what it has started may hold its end of the pipe.
            NoMessageError: it says what it cannot say.
        """
        link, sentinel = running.link, running.process.sentinel
        while True:
            left = link.deadline - time.monotonic()
            if left <= 0.0:
                raise TimeoutError
            heard: list[Any] = [link.end, sentinel, *([running.output.end] if running.output.is_open else [])]
            ready = wait(heard, min(left, _PATIENCE))
            if running.output.end in ready:
                running.output.forward()
            if link.end in ready:
                message, arrays = _received(link, most)
                match message:
                    case Answer():
                        return message, arrays
                    case Parameter(name) if name in parameters:
                        link.send(b"", [parameters[name]])
                    case Progress(what, done):
                        report_progress(printable(what[:SHOWN]), done)
                    case _:
                        raise NoMessageError("a parameter is asked for that there is not")
            elif sentinel in ready:
                raise EOFError("it has ended")

    def close(self) -> None:
        """End the process, in the middle of whatever it does."""
        if self._running is not None:
            _kill(self._running)
            self._running = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()


def _kill(running: _Running) -> None:
    """The process and its group: what it has started may outlive it."""
    with suppress(OSError):  # there is no such group any more, or not yet
        if hasattr(os, "killpg") and running.process.pid:
            os.killpg(running.process.pid, signal.SIGKILL)
    running.process.kill()
    running.process.join()
    _WORKERS.discard(running.process.pid or 0)
    kill_orphans(but=_WORKERS)
    running.output.drain()
    running.link.close()
    shutil.rmtree(running.scratch, ignore_errors=True)


def _received(link: Link, most: float) -> tuple[Answer | Parameter | Progress, Sequence[Any]]:
    """What a worker says; `NoMessageError` where it is nothing that it can say."""
    message, arrays = link.receive(most)
    try:
        return decoded(message), arrays
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoMessageError(str(error)) from error


def _how(code: int | None) -> str:
    """The signal that ended a process, or its exit code; of one that is still there and does not answer there is neither."""
    if code is None:
        return ", or its connection"
    return f" (exit code {code})" if code >= 0 else f" ({signal.strsignal(-code) or f'signal {-code}'})"


@dataclass(frozen=True)
class _Start:
    """What a worker begins with: it may be forked from a server that was started elsewhere, under other variables."""

    prepare: Callable[[Ask], Work]
    limits: Limits
    folder: str
    variables: Mapping[str, str]


def _serve(start: _Start, end: socket.socket, writing: Connection) -> None:
    """The worker: an answer for each question. It ends with the process that asks."""
    if not start.limits.network:
        leave_network()
    leave_helpers()
    bind_to_parent()
    os.environ.clear()
    os.environ.update(start.variables)
    os.chdir(start.folder)
    limit_memory(start.limits.memory)
    for standard in (1, 2):
        os.dup2(writing.fileno(), standard)
    writing.close()
    # Without a buffer: what is printed before the process is ended is seen.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    link, turn = Link(end), threading.Lock()

    def parameter(name: str) -> Array:
        with turn:  # a candidate may have several threads
            link.send(encoded(Parameter(name)))
            array: Array = link.receive(math.inf)[1][0]
            return array

    work = start.prepare(parameter)
    link.send(encoded(Answer(Done(), True)))
    while True:
        try:
            question = pickle.loads(link.receive()[0])  # of the process that started this one
        except EOFError:
            return
        with watched(lambda what, done: link.send(encoded(Progress(what, done)))):
            found, arrays = work.answer(question)
        link.send(encoded(Answer(found, work.is_whole)), arrays)
