"""A program's process: started when it is first asked, asked by lines of JSON, and ended with whoever holds it."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize

import msgspec

from conformance.errors import CandidateCrash, CandidateError, CandidateFailure, Unsupported
from conformance.model.files import JSON, SHOWN

PROTOCOL = 1
_GRACE = 5.0  # seconds between the end of a process's output and its own
_PAGE = "`bert-conformance explain cmd` has the protocol"


class Reply(msgspec.Struct, frozen=True):
    """What a program answers: `reply` repeats the request's name; a refusal has `unsupported` or `error` besides."""

    reply: str
    unsupported: str = ""
    error: str = ""
    protocol: int = 0
    features: tuple[str, ...] = ()
    gradients: bool = False


class Program:
    """A program, and its process while there is one.

    Attributes:
        prepared: by whom it was prepared last; None after its process has ended.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Nothing is started yet."""
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._hello = Reply("hello")
        self.prepared: object = None

    @property
    def hello(self) -> Reply:
        """What it says of itself; raises as `ask`."""
        self._running()
        return self._hello

    def ask(self, request: str, **fields: Any) -> Reply:
        """Its reply to a request.

        Raises:
            Unsupported: it says that it does not support what is asked; only of `prepare`.
            CandidateCrash: it replies with an error, or ends before it replies.
            CandidateError: its reply is none of the protocol's; its process is ended.
        """
        return self._exchanged(self._running(), request, fields)

    def _running(self) -> "subprocess.Popen[bytes]":
        """Its process; started, and its version of the protocol compared, where there is none."""
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
        with suppress(BrokenPipeError):  # it has ended, which is seen where its reply is read
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
        """The reply in a line of its standard output."""
        found = repr(line[:SHOWN].decode("utf-8", "backslashreplace").rstrip("\n"))
        expected = f'expected {{"reply": "{request}", ...}} on one line; messages belong on standard error; {_PAGE}'
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._ended(CandidateError(f"its standard output has {found} ({error}), {expected}")) from error
        if reply.reply != request:
            raise self._ended(CandidateError(f"it replies {found} to `{request}`, {expected}"))
        return reply

    def _ended(self, why: CandidateFailure) -> CandidateFailure:
        """End its process; returns why."""
        self._end()
        self._process = self.prepared = None
        return why


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """End a process; what it has started reads the end of the same standard input."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what could not be written to it
            pipe.close()  # type: ignore[union-attr]  # there are both
    process.kill()
    process.wait()


def _how(process: "subprocess.Popen[bytes]") -> str:
    """With which exit code, or by which signal; its standard error is shown where the candidate's output is."""
    try:
        code = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return ", or closed its standard output"
    return f" (exit code {code})" if code >= 0 else f" (signal {-code})"
