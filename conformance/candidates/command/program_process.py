"""The process of a program: started with the first request, sent lines of JSON, and ended with its `ProgramProcess` object."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize

import msgspec

from conformance.errors import CandidateCrash, CandidateError, CandidateFailure, Unsupported
from conformance.model.files import JSON, QUOTED_CHARACTERS

PROTOCOL = 1
_GRACE = 5.0  # seconds that a process may take to end after its output has ended
_PAGE = "`bert-conformance explain cmd` has the protocol"


class Reply(msgspec.Struct, frozen=True):
    """A program's reply: `reply` repeats the name of the request; a refusal also has `unsupported` or `error`."""

    reply: str
    unsupported: str = ""
    error: str = ""
    protocol: int = 0
    features: tuple[str, ...] = ()
    gradients: bool = False


class ProgramProcess:
    """A program, and its process while it runs.

    Attributes:
        prepared: the runner that prepared the process last; None after the process has ended.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Store the program and its arguments; the process is not started yet."""
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._hello = Reply("hello")
        self.prepared: object = None

    @property
    def hello(self) -> Reply:
        """The program's reply to `hello`; starts the process if needed and raises the errors of `ask`."""
        self._running()
        return self._hello

    def ask(self, request: str, **fields: Any) -> Reply:
        """Return the program's reply to a request.

        Raises:
            Unsupported: the program replies to `prepare` that the case is unsupported.
            CandidateCrash: the program replies with an error, or its process ends before the reply.
            CandidateError: the reply violates the protocol; the process is then ended.
        """
        return self._exchanged(self._running(), request, fields)

    def _running(self) -> "subprocess.Popen[bytes]":
        """Return the process; if there is none, start it and check its version of the protocol."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.prepared = None
        try:
            process = subprocess.Popen(self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise CandidateCrash(f"{self._arguments[0]} could not be started: {error.strerror}") from error
        self._process, self._end = process, finalize(self, _ended, process)
        self._hello = self._exchanged(process, "hello", {"protocol": PROTOCOL})
        if self._hello.protocol != PROTOCOL:
            found = self._hello.protocol
            raise self._ended(CandidateError(f"it answers in version {found} of the protocol, expected {PROTOCOL}; {_PAGE}"))
        return process

    def _exchanged(self, process: "subprocess.Popen[bytes]", request: str, fields: dict[str, Any]) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended, which is detected when its reply is read
            process.stdin.write(json.dumps({"request": request, **fields}).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline(JSON)
        if not line:
            raise self._ended(CandidateCrash(f"its process ended before it replied to `{request}`{_how(process)}"))
        reply = self._read(line, request)
        if reply.error:
            raise CandidateCrash(reply.error)
        if reply.unsupported and request == "prepare":
            raise Unsupported(reply.unsupported)
        return reply

    def _read(self, line: bytes, request: str) -> Reply:
        """Parse the reply in a line of the program's standard output."""
        found = repr(line[:QUOTED_CHARACTERS].decode("utf-8", "backslashreplace").rstrip("\n"))
        expected = f'expected {{"reply": "{request}", ...}} on one line; messages belong on standard error; {_PAGE}'
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._ended(CandidateError(f"its standard output has {found} ({error}), {expected}")) from error
        if reply.reply != request:
            raise self._ended(CandidateError(f"it replies {found} to `{request}`, {expected}"))
        return reply

    def _ended(self, why: CandidateFailure) -> CandidateFailure:
        """End the process and return the error `why`, to be raised."""
        self._end()
        self._process = self.prepared = None
        return why


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """End a process; its child processes can detect this by the end of their standard input."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # closing flushes data that can no longer be written
            pipe.close()  # type: ignore[union-attr]  # there are both
    process.kill()
    process.wait()


def _how(process: "subprocess.Popen[bytes]") -> str:
    """Describe how a process ended: its exit code or signal. Its standard error is shown with the candidate's output."""
    try:
        code = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return ", or closed its standard output"
    return f" (exit code {code})" if code >= 0 else f" (signal {-code})"
