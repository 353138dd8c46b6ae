"""A program in any language as a candidate: tensors are exchanged as safetensors files, as specified in `PROTOCOL.md`."""

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from safetensors.numpy import save_file

from conformance.candidates.arrays import Described, described
from conformance.candidates.command.program_process import ProgramProcess
from conformance.errors import CandidateError, UsageError
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.files import ARRAYS, open_safetensors, reading, scratch_folder

PREFIX = "cmd:"  # prefix of a candidate's name that is a command line


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
