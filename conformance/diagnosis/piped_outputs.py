"""Outputs from standard input or a pipe: they are copied to a temporary file, whose format their first bytes show."""

import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from conformance.diagnosis.outputs_file import Given, read
from conformance.errors import UsageError
from conformance.model.files import OUTPUTS, reading, scratch_folder

STANDARD_INPUT = Path("-")

_LENGTH = 8  # bytes of the length of the header with which a safetensors file begins
# The first bytes of the binary formats that have a signature, each with the suffix of its files.
_SIGNATURES = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"PAR1": ".parquet"}


def name_of(path: Path) -> str:
    """Return the name by which messages call the source of outputs."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def read_outputs(path: Path) -> Given:
    """Return the outputs in a file, in a pipe, or, for `-`, on standard input.

    Raises:
        UsageError: they cannot be read, or there are none.
    """
    if path != STANDARD_INPUT and not _is_pipe(path):
        return read(path)
    with _copied(path) as file:
        try:
            return read(file)
        except UsageError as error:
            raise UsageError(str(error).replace(str(file), name_of(path))) from error


def _is_pipe(path: Path) -> bool:
    with reading(path, "outputs", UsageError):
        return stat.S_ISFIFO(path.stat().st_mode)


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Write the stream to a temporary file, which is removed afterwards, and yield its path."""
    folder = scratch_folder()
    try:
        with reading(name_of(path), "outputs", UsageError):
            content = _content(path)
        file = folder / f"outputs{_suffix(content)}"
        file.write_bytes(content)
        yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _content(path: Path) -> bytes:
    if path == STANDARD_INPUT:
        return _limited(sys.stdin.buffer)
    with path.open("rb") as file:
        return _limited(file)


def _limited(file: IO[bytes]) -> bytes:
    content = file.read(OUTPUTS + 1)
    if len(content) > OUTPUTS:
        raise ValueError(f"it has more than {OUTPUTS} bytes; write them to a file")
    if not content.strip():
        raise ValueError("it is empty")
    return content


def _suffix(content: bytes) -> str:
    known = next((suffix for signature, suffix in _SIGNATURES.items() if content.startswith(signature)), "")
    is_safetensors = content[_LENGTH : _LENGTH + 1] == b"{" and int.from_bytes(content[:_LENGTH], "little") <= len(content)
    return known or (".safetensors" if is_safetensors else ".txt")
