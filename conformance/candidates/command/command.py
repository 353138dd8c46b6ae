"""A program in any language as a candidate: activations are exchanged as safetensors files, by `PROTOCOL.md` in this folder."""

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
from conformance.candidates.command.program import Program
from conformance.errors import CandidateError, UsageError
from conformance.model.batch import TorchBatch
from conformance.model.checkpoint import Checkpoint
from conformance.model.files import ARRAYS, open_safetensors, reading, scratch_folder

PREFIX = "cmd:"  # a candidate's name that is a command line


@dataclass(frozen=True)
class Command:
    """A program that computes activations.

    Attributes:
        name: `cmd:` and a command line, split as a POSIX shell splits it; no shell runs it.

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
        """Those that the program names in its reply to `hello`."""
        return self._program.hello.features

    def prepare(self, checkpoint: Checkpoint, device: str, dtype: str) -> "_Runner":
        """A runner of that checkpoint in the program's process.

        Raises:
            Unsupported: the program says so.
            CandidateError, CandidateCrash: as `Program.ask`.
        """
        return _Runner(self._program, checkpoint, device, dtype)

    @cached_property
    def _program(self) -> Program:
        return Program(arguments_of(self.name))


def arguments_of(name: str) -> list[str]:
    """The arguments of a command line after `cmd:`; `UsageError` where they cannot be split, or name no program."""
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
    """Runs batches; prepares the program anew where it has meanwhile ended, or has been prepared by another runner."""

    def __init__(self, program: Program, checkpoint: Checkpoint, device: str, dtype: str) -> None:
        self._program, self._folder = program, scratch_folder()
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._weights = self._path("weights")
        checkpoint.write(self._weights)
        self._asked = {"architecture": checkpoint.architecture.as_dict(), "device": device, "dtype": dtype}
        self._prepare()

    def __call__(self, batch: TorchBatch) -> Mapping[str, Described]:
        """The activations by name."""
        return self._run(batch.numpy().arrays())

    @property
    def gradients(self) -> Callable[[TorchBatch, str, Any], Mapping[str, Described]] | None:
        """The backward pass; None where the program has none."""
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
    """What a program has written, mapped into memory and read as it is needed; `CandidateError` where it is unreadable.

    The program may write to that path again: the file is removed before, and stays as it is for whoever has mapped it.
    """
    if path.is_symlink():
        raise CandidateError(f"{path.name} is a link; expected a file, written at the path that `outputs` names")
    with reading(path.name, "the safetensors file that the reply to `run` announces", CandidateError):
        file = open_safetensors(path, "pt", ARRAYS)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
    return {name: replace(described(tensor), device=None) for name, tensor in tensors.items()}
