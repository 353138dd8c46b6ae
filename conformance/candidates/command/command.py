"""A program in any language as a candidate: its process answers lines of JSON, and tensors are safetensors files (`PROTOCOL.md`).

The process is started with the first request, and ended with its `ProgramProcess` object.
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import msgspec
import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.arrays import Described, described
from conformance.errors import CandidateCrash, CandidateError, CandidateFailure, Unsupported, UsageError
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.files import ARRAYS, JSON, QUOTED_CHARACTERS, open_safetensors, reading, scratch_folder

PREFIX = "cmd:"  # prefix of a candidate's name that is a command line
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


@dataclass(frozen=True)
class Command:
    """A program that computes activations.

    Attributes:
        name: `cmd:` and a command line, which is split as by a POSIX shell but run without a shell.

    Raises:
        UsageError: there is no such program.

    Example:
        >>> Command("cmd:no-such-program --fast")
        Traceback (most recent call last):
        ...
        conformance.errors.UsageError: cmd:no-such-program --fast: there is no program 'no-such-program' that can be run
    """

    name: str

    def __post_init__(self) -> None:
        arguments_of(self.name)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the program names in its reply to `hello`."""
        return self._program.hello.features

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "_Runner":
        """Return a runner for a checkpoint in the program's process.

        Raises:
            Unsupported: the program replies that the case is unsupported.
            CandidateError, CandidateCrash: as raised by `Program.ask`.
        """
        return _Runner(self._program, checkpoint, device, dtype)

    @cached_property
    def _program(self) -> ProgramProcess:
        return ProgramProcess(arguments_of(self.name))


def arguments_of(name: str) -> list[str]:
    """Return the arguments of a command line after `cmd:`.

    Raises:
        UsageError: the command line cannot be split, or does not start with an executable program.
    """
    try:
        arguments = shlex.split(name.removeprefix(PREFIX))
    except ValueError as error:
        raise UsageError(f"{name}: the command line cannot be split: {error}") from error
    if not arguments:
        raise UsageError(f"{name}: no program is named; write 'cmd:PROGRAM ARGS', as 'cmd:node my_bert.mjs'")
    if shutil.which(arguments[0]) is None:
        raise UsageError(
            f"{name}: there is no program {arguments[0]!r} that can be run, neither at that path nor on PATH; install it, make it "
            "executable, or name what runs it, as 'cmd:python3 my_bert.py'"
        )
    return arguments


class _Runner:
    """A runner of batches; it prepares the program again if the process has ended or another runner has prepared it since."""

    def __init__(self, program: ProgramProcess, checkpoint: Checkpoint, device: str, dtype: str) -> None:
        self._program, self._folder = program, scratch_folder()
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._weights = self._path("weights")
        checkpoint.write(self._weights)
        self._asked = {"architecture": checkpoint.architecture.as_dict(), "device": device, "dtype": dtype}
        self._prepare()

    def __call__(self, batch: TorchBatch) -> Mapping[str, Described]:
        """Return the activations by name."""
        return self._run(batch.numpy().arrays())

    @property
    def gradients(self) -> Callable[[TorchBatch, str, Any], Mapping[str, Described]] | None:
        """The backward pass; None if the program has none."""
        return self._gradients if self._program.hello.gradients else None

    def _gradients(self, batch: TorchBatch, source: str, gradient: Any) -> Mapping[str, Described]:
        given = np.asarray(gradient.double().cpu())
        return self._run({**batch.numpy().arrays(), "gradient": given}, source=source)

    def _run(self, arrays: Mapping[str, Any], **fields: str) -> Mapping[str, Described]:
        if self._program.prepared is not self:
            self._prepare()
        inputs, outputs = self._path("inputs"), self._path("outputs")
        outputs.unlink(missing_ok=True)
        save_file({name: np.array(array, order="C") for name, array in arrays.items()}, inputs)
        self._program.ask("run", inputs=str(inputs), outputs=str(outputs), **fields)
        return written(outputs)

    def _prepare(self) -> None:
        self._program.ask("prepare", weights=str(self._weights), **self._asked)
        self._program.prepared = self

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"


def written(path: Path) -> dict[str, Described]:
    """Return the tensors in a file that a program has written, memory-mapped and read when needed.

    The program may write to that path again: the file is unlinked before, so that an existing mapping keeps its content.

    Raises:
        CandidateError: the path is a link, or the file is missing or unreadable.
    """
    if path.is_symlink():
        raise CandidateError(f"{path.name} is a link; expected a file, written at the path that `outputs` names")
    with reading(path.name, "the safetensors file that the reply to `run` announces", CandidateError):
        file = open_safetensors(path, "pt", ARRAYS)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
    return {name: replace(described(tensor), device=None) for name, tensor in tensors.items()}
