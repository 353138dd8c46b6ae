"""Worker processes: a worker imports and runs one candidate, and its end does not affect other candidates."""

import io
import math
import os
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
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from conformance.errors import CandidateCrash, CandidateEnded, CandidateFailure, CandidateTimeout, ConformanceError, FixtureError
from conformance.isolation.confinement import ancestors, bind_to_parent, kill_orphans, leave_helpers, leave_network, limit_memory
from conformance.isolation.fork_server import ENDING, has_ended, interrupts_blocked, server_id, started_context
from conformance.isolation.forwarded_output import ForwardedOutput, to_standard_error
from conformance.isolation.link import Failure, Link, NoMessageError, Received, encoded, types_of
from conformance.isolation.refused_signals import refuse_signals
from conformance.model.files import QUOTED_CHARACTERS, SCRATCH, scratch_folder
from conformance.names import printable
from conformance.numerics.formats import Array
from conformance.progress import report_progress, watched
from conformance.results.termination import rendered

_PATIENCE = 3600.0  # seconds that one system call may wait at most; then it is repeated
_GRACE = 5.0  # seconds that a process may take to end after its connection is closed
_DELAY = 1.0  # seconds by which a worker's end may be noticed before that of its fork server
_SERVER_LOST = 255  # exit code that multiprocessing gives to a process whose fork server cannot be asked
_SERVER_ENDED = "while it ran, the process that starts all workers was ended, and its own process with it"

_WORKERS: set[int] = set()  # process ids of the running workers of this process


class Work(Protocol):
    """The protocol of the work that a worker does: each method with annotated types can be asked."""

    def of(self, kind: str) -> object:
        """Return the object whose class has the name `kind` and whose method is asked."""

    @property
    def device_loss(self) -> str | None:
        """The error that made the device unusable; None while it is usable, so that the worker can continue."""


Ask = Callable[[str], Array]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ResourceLimits:
    """The resource limits of a worker.

    Attributes:
        seconds: total time for its answers until `WorkerProcess.renew` is called; None: unlimited.
        memory: address space in bytes, beyond that of an idle worker; None: unlimited.
        output: number of bytes of its output that are shown.
        network: whether it may use the network; if not, network access is blocked on systems that allow this.
    """

    seconds: float | None = None
    memory: int | None = None
    output: int = 2**20
    network: bool = False


@dataclass(frozen=True)
class _Running:
    """A running process with the connection to it, its output, and its scratch folder."""

    process: BaseProcess
    link: Link
    output: ForwardedOutput
    scratch: Path
    server: int | None  # process id of the fork server that it was forked from


class WorkerProcess:
    """A worker process that answers questions; it is replaced by a new one if it has ended or its device is unusable.

    Args:
        prepare: makes the work in the worker, given a function that requests a parameter from this process; it must be picklable.
        limits: resource limits of the process.
        show: called with the text that the process writes.
    """

    def __init__(
        self,
        prepare: Callable[[Ask], Work],
        limits: ResourceLimits = ResourceLimits(),
        show: Callable[[str], object] = to_standard_error,
    ) -> None:
        """Store the arguments; no process is started yet."""
        self._prepare, self._limits, self._show = prepare, limits, show
        self._running: _Running | None = None
        self.holds: object = None  # the runner that the worker has prepared last
        self.failure = CandidateFailure("nothing has run yet")  # the reason why the last process ended
        self.renew()

    @property
    def process(self) -> object:
        """An object that identifies the current process; None if there is none.

        A process whose fork server has ended is closed: the kernel ends it, whichever candidate ended the fork server.
        """
        if self._running is not None and has_ended(self._running.server):
            self._end(CandidateEnded(_SERVER_ENDED))
        return self._running and self._running.process

    def renew(self) -> None:
        """Reset the remaining time to `ResourceLimits.seconds`."""
        self._left = math.inf if self._limits.seconds is None else self._limits.seconds

    def asking(
        self, method: Callable[Concatenate[Any, P], T], most: float = 0, parameters: Mapping[str, Array] | None = None
    ) -> Callable[P, T]:
        """Return a function that calls a method of the work and returns its result; it starts a process if there is none.

        Its arguments are given by position. It raises what the method raises, and

        - CandidateTimeout: there was no reply in time; the process is ended;
        - CandidateEnded: the process ended, or sent an invalid message; the text says how;
        - FixtureError: the process could not be started.

        Args:
            method: the method; the result has the type that it is annotated with.
            most: maximum total size of the arrays in the result, in bytes.
            parameters: parameters that the worker may request until it replies.
        """

        def asked(*arguments: P.args, **_: P.kwargs) -> T:
            received = self._asked(method.__qualname__, arguments, parameters or {}, most)
            try:
                if received.message.failure is not None:
                    raise received.message.failure.error(received.arrays)
                result: T = received.content(received.message.reply, types_of(method)[1])
            except NoMessageError as error:
                raise self._end(CandidateEnded(f"its process answers {method.__name__} by what it cannot be: {error}")) from error
            return result

        return asked

    def _asked(self, name: str, arguments: object, parameters: Mapping[str, Array], most: float) -> Received:
        """Return the reply to a request, or the failure in place of it."""
        running = self._running if self.process is not None and self._running else self._started()
        start = time.monotonic()
        running.link.deadline = start + self._left
        try:
            running.link.send(encoded(request=name, arguments=arguments))
            received = self._answer(running, parameters, most)
        except TimeoutError:
            raise self._end(CandidateTimeout(f"it had not come to an end after {self._limits.seconds:g} s")) from None
        except NoMessageError as error:
            raise self._end(CandidateEnded(f"where its process answers, something else was written: {error}")) from None
        except (EOFError, OSError):
            running.process.join(_GRACE)
            code = running.process.exitcode
            # The server's end is the reason if it comes with the worker's; a server that is ending closes its files first.
            within = _GRACE if code == _SERVER_LOST else _DELAY
            ended = _SERVER_ENDED if has_ended(running.server, within) else f"it ended the process that it ran in{_how(code)}"
            raise self._end(CandidateEnded(ended)) from None
        finally:
            self._left -= time.monotonic() - start
        if received.message.device_loss is not None:
            self._end(CandidateEnded(f"what ran before has broken the device for its process: {received.message.device_loss}"))
        return received

    def _end(self, why: CandidateFailure) -> CandidateFailure:
        """End the process and return the error `why`, to be raised."""
        self.failure = why
        self.close()
        return why

    def _started(self) -> _Running:
        has_ended(server_id())  # a stopped server would be waited for without end
        started = started_context()
        ours, theirs = socket.socketpair()
        written, writing = started.Pipe(duplex=False)
        scratch = scratch_folder()
        start = _Start(self._prepare, self._limits, os.getcwd(), {**os.environ, SCRATCH: str(scratch)})
        process = started.Process(target=_serve, args=(start, theirs, writing))  # type: ignore[attr-defined]  # every context has it
        try:
            with interrupts_blocked():  # a process that receives incomplete start data ends with a traceback
                process.start()
                _WORKERS.add(process.pid or 0)
                self._running = running = _Running(
                    process, Link(ours), ForwardedOutput(written, self._limits.output, self._show), scratch, server_id()
                )
            theirs.close()
            writing.close()
            self._answer(running, {}, 0)  # it is ready; a failure before this is not the candidate's
        except (EOFError, OSError) as error:
            self.close()
            raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return running

    def _answer(self, running: _Running, parameters: Mapping[str, Array], most: float) -> Received:
        """Return the worker's reply or failure; until it arrives, forward progress and output, and send requested parameters.

        Raises:
            TimeoutError: the time has run out.
            EOFError: the process has ended; a child process of it may still hold its end of the connection.
            NoMessageError: the worker sent an invalid message, or requested an unknown parameter.
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
                received = link.receive(most)
                message = received.message
                if message.is_reply:
                    return received
                if message.parameter is not None and message.parameter in parameters:
                    link.send(encoded(reply=parameters[message.parameter]))
                elif message.progress is not None:
                    report_progress(printable(message.progress[0][:QUOTED_CHARACTERS]), message.progress[1])
                else:
                    raise NoMessageError("neither a reply nor progress nor a parameter that there is")
            elif sentinel in ready:
                raise EOFError("it has ended")

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._running is not None:
            _kill(self._running)
            self._running = None

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self.close()


def _kill(running: _Running) -> None:
    """Kill the process and its process group, since its child processes may outlive it, and free its resources."""
    with suppress(OSError):  # the group no longer exists, or does not exist yet
        if hasattr(os, "killpg") and running.process.pid:
            os.killpg(running.process.pid, signal.SIGKILL)
    running.process.kill()
    while running.process.exitcode is None and not has_ended(running.server):  # a stopped server reports no end
        running.process.join(_DELAY)
    _WORKERS.discard(running.process.pid or 0)
    kill_orphans(but=_WORKERS)
    running.output.drain()
    running.link.close()
    shutil.rmtree(running.scratch, ignore_errors=True)


def _how(code: int | None) -> str:
    """Describe how a process ended: by exit code or signal; None means that it still runs but has closed its connection."""
    if code is None:
        return ", or its connection"
    return f" (exit code {code})" if code >= 0 else f" ({signal.strsignal(-code) or f'signal {-code}'})"


@dataclass(frozen=True)
class _Start:
    """The start data of a worker; the fork server may have another current folder and other environment variables."""

    prepare: Callable[[Ask], Work]
    limits: ResourceLimits
    folder: str
    variables: Mapping[str, str]


def _serve(start: _Start, end: socket.socket, writing: Connection) -> None:
    """Run a worker: confine the process, then answer questions until the connection is closed."""
    if not start.limits.network:
        leave_network()
    leave_helpers()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    refuse_signals(ancestors())
    bind_to_parent()
    os.environ.clear()
    os.environ.update(start.variables)
    os.chdir(start.folder)
    limit_memory(start.limits.memory)
    for standard in (1, 2):
        os.dup2(writing.fileno(), standard)
    writing.close()
    # Unbuffered, so that output printed before the process is killed is not lost.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    link, turn = Link(end), threading.Lock()

    def parameter(name: str) -> Array:
        with turn:  # a candidate may have several threads
            link.send(encoded(parameter=name))
            received = link.receive(math.inf, math.inf)
            array: Array = received.content(received.message.reply, Array)
            return array

    work = start.prepare(parameter)
    link.send(encoded(reply=None))
    while True:
        try:
            received = link.receive(math.inf, math.inf)  # of the process that started this one, so that its size is not limited
        except EOFError:
            return
        with watched(lambda what, done: link.send(encoded(progress=(what, done)))):
            reply = _reply(work, received)
        link.send(reply)


def _reply(work: Work, received: Received) -> Sequence[bytes]:
    """Call the requested method and return the message with its result, or with the exception that it raised."""
    try:
        kind, _, name = (received.message.request or "").partition(".")
        method = getattr(work.of(kind), name)
        arguments = received.content(received.message.arguments, types_of(method.__func__)[0])
        return encoded(reply=method(*arguments), device_loss=work.device_loss)
    except ConformanceError as error:
        failure = error
    except BaseException as error:  # of an object of the candidate's, wherever its code is run
        failure = CandidateCrash(rendered(error))
    return encoded(failure=Failure.of(failure), device_loss=work.device_loss)
