"""Worker processes: a worker imports and runs one candidate, and its end does not affect other candidates."""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from weakref import finalize

from conformance.errors import CandidateCrash, CandidateEnded, CandidateFailure, CandidateTimeout, FixtureError, NotApplicable
from conformance.isolation.fork_server import Child, forked
from conformance.isolation.forwarded_output import ForwardedOutput, to_standard_error
from conformance.isolation.link import PAGE, Link, NoMessageError, Received, encoded, types_of
from conformance.isolation.serving import Work, serve
from conformance.model.files import QUOTED_CHARACTERS, SCRATCH, scratch_folder
from conformance.names import printable
from conformance.numerics.formats import Array
from conformance.progress import report_progress

_PATIENCE = 3600.0  # seconds that one system call may wait at most; then it is repeated
_GRACE = 5.0  # seconds that a process may take to end after its connection is closed

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

    child: Child
    link: Link
    output: ForwardedOutput
    scratch: Path

    def end(self) -> None:
        """Kill the process with what it has started, and free its resources."""
        self.child.end()
        self.output.drain()
        self.link.end.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


class WorkerProcess:
    """A worker process that answers questions; it is replaced by a new one if it has ended or its device is unusable.

    Args:
        work: a class or function of a module that makes the work in the worker, given a function that requests a parameter from
            this process.
        limits: resource limits of the process.
        show: called with the text that the process writes.
    """

    def __init__(
        self,
        work: Callable[[Ask], Work],
        limits: ResourceLimits = ResourceLimits(),
        show: Callable[[str], object] = to_standard_error,
    ) -> None:
        """Store the arguments; no process is started yet."""
        self._work, self._limits, self._show = f"{work.__module__}:{work.__qualname__}", limits, show
        self._program: Sequence[str] = ()
        self._running: _Running | None = None
        self._count = 0
        self.holds: object = None  # the runner that the worker has prepared last
        self.failure = CandidateFailure("nothing has run yet")  # the reason why the last process ended
        self.renew()

    @property
    def process(self) -> object:
        """An object that identifies the current process; None if there is none."""
        return self._running

    def renew(self) -> None:
        """Reset the remaining time to `ResourceLimits.seconds`."""
        self._left = math.inf if self._limits.seconds is None else self._limits.seconds

    def become(self, program: Sequence[str]) -> None:
        """Let a program with these arguments answer; the work if there are none. What runs now is ended if it is another."""
        if program != self._program:
            self.close()
            self._program = program

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
        kind, result = types_of(method)

        def asked(*arguments: P.args, **_: P.kwargs) -> T:
            named = dict(zip(kind.__struct_fields__, arguments, strict=True))
            received = self._asked(method.__qualname__.removeprefix(_COMMON), named, parameters or {}, most)
            try:
                if received.message.failure is not None:
                    error = received.message.failure.error(received.arrays)
                    if self._program and not isinstance(error, CandidateCrash | NotApplicable):
                        raise NoMessageError(f"a failure of the kind {type(error).__name__}; {PAGE}")
                    raise error
                found: T = received.content(received.message.result, result)
            except NoMessageError as why:
                raise self._end(CandidateEnded(f"its process answers {method.__name__} by what it cannot be: {why}")) from why
            return found

        return asked

    def _asked(self, name: str, arguments: Mapping[str, object], parameters: Mapping[str, Array], most: float) -> Received:
        """Return the reply to a request."""
        running = self._running or self._started()
        start = time.monotonic()
        running.link.deadline = start + self._left
        self._count += 1
        try:
            running.link.send(encoded(request=self._count, method=name, arguments=arguments))
            received = self._answer(running, parameters, most)
        except TimeoutError:
            raise self._end(CandidateTimeout(f"it had not come to an end after {self._limits.seconds:g} s")) from None
        except NoMessageError as error:
            advice = f"; what it prints belongs on standard error; {PAGE}" if self._program else ""
            raise self._end(CandidateEnded(f"where its process answers, something else was written: {error}{advice}")) from None
        except (EOFError, OSError):
            code = running.child.exit_code(_GRACE)
            raise self._end(CandidateEnded(f"it ended the process that it ran in{_how(code)}")) from None
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
        scratch, limits, self._count = scratch_folder(), self._limits, 0
        variables = {**os.environ, SCRATCH: str(scratch)}
        confined = {"network": limits.network, "memory": limits.memory}
        child = forked(f"{serve.__module__}:{serve.__name__}", variables, work=self._program or self._work, **confined)
        running = _Running(child, Link(child.link), ForwardedOutput(child.output, limits.output, self._show), scratch)
        self._running, self._ending = running, finalize(self, running.end)
        if not self._program:
            try:
                self._answer(running, {}, 0)  # it is ready; a failure before this is not the candidate's
            except (EOFError, OSError) as error:
                self.close()
                raise FixtureError("the process for the candidates could not be made ready; its error is above") from error
        return running

    def _answer(self, running: _Running, parameters: Mapping[str, Array], most: float) -> Received:
        """Return the worker's reply; until it arrives, forward progress and output, and send requested parameters.

        Raises:
            TimeoutError: the time has run out.
            EOFError: the process has ended; a child process of it may still hold its end of the connection.
            NoMessageError: the worker sent an invalid message, or requested an unknown parameter.
        """
        link, ended = running.link, running.child.status
        while True:
            left = link.deadline - time.monotonic()
            if left <= 0.0:
                raise TimeoutError
            ready = wait([link.end, ended, *([running.output.end] if running.output.is_open else [])], min(left, _PATIENCE))
            if running.output.end in ready:
                running.output.forward()
            if link.end in ready:
                received = link.receive(most)
                message = received.message
                if message.reply == self._count:
                    return received
                if message.parameter is not None and message.parameter in parameters:
                    link.send(encoded(parameter=message.parameter, result=parameters[message.parameter]))
                elif message.progress is not None:
                    report_progress(printable(message.progress[0][:QUOTED_CHARACTERS]), message.progress[1])
                else:
                    raise NoMessageError(f"neither a reply to request {self._count} nor progress nor a parameter that there is")
            elif ended in ready:
                raise EOFError("it has ended")

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._running is not None:
            self._ending()
            self._running = None

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self.close()


_COMMON = "CandidateWork."  # prefix of the names of most methods, which is not sent


def _how(code: int | None) -> str:
    """Describe how a process ended: by exit code or signal; None means that it still runs but has closed its connection."""
    if code is None:
        return ", or its connection"
    return f" (exit code {code})" if code >= 0 else f" ({signal.strsignal(-code) or f'signal {-code}'})"
