"""Read untrusted files: check the size first, then the format, then the values. Problems raise one of the package's errors.

No file is read beyond its limit, and no size stated inside a file is trusted. The limits of text files are chosen so that reading
takes at most 5 s and 1 GiB; `benchmarks/readers/FULL.md` has files at these limits on one machine.
"""

import atexit
import fcntl
import json
import os
import shutil
import stat
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec

from conformance.errors import ConformanceError, UsageError

if TYPE_CHECKING:  # `bert-conformance list` reads manifests and must not import NumPy
    import numpy.typing as npt
    import torch

    Arrays = dict[str, npt.NDArray[Any]]

TEXT = 16 * 2**20  # bytes of a text file; a tokenizer.json of 900,000 pieces fits
JSON = 4 * 2**20  # bytes of a configuration, a manifest or batches; ids of a few hundred thousand tokens fit
SETTINGS, DOTS = 2**18, 100  # bytes of a TOML file, and dots per line, since tomllib's time is cubic in the parts of a key
PRINTED = 2**19  # numbers read from decimal text, one Python object each; a hidden state of 4 x 128 x 768 has fewer
ARRAYS = 3 * 2**29  # bytes of a file of parameters, whose copy is memory-mapped; BERT-large in float32 has 1.34e9
OUTPUTS = 2**28  # bytes of arrays that are unpacked or read at once: two float32 hidden states of 64 x 512 x 1024
LARGEST = "BERT_CONFORMANCE_LARGEST_FILE"  # environment variable: bytes, replaces the two limits above where it is larger
_PIECE = 2**20  # bytes that are copied at a time
QUOTED_CHARACTERS = 300  # characters of a library's error message that are quoted

ALLOW_PICKLE = (
    "BERT_CONFORMANCE_ALLOW_PICKLE"  # environment variable: 1 allows reading pickled checkpoints; child processes inherit it
)

SCRATCH = "BERT_CONFORMANCE_SCRATCH"  # environment variable: parent of a worker's temporary folders, removed with the worker

T = TypeVar("T")
Stamp = tuple[int, int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Return what differs after a file was replaced or written to, even if its times were set back; None if there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def stamps_of(files: Iterable[Path]) -> dict[Path, Stamp | None]:
    """Return the stamp of each file."""
    return {path: stamp_of(path) for path in files}


_scratch_folders: set[Path] = set()  # those of this process


def scratch_folder() -> Path:
    """Create and return a temporary folder, which the caller removes; else it is removed when the process ends.

    Folders that a worker leaves behind are removed when the worker has ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="bert-conformance-", dir=os.environ.get(SCRATCH)))
    if not _scratch_folders:
        atexit.register(remove_scratch_folders)
    _scratch_folders.add(folder)
    return folder


def remove_scratch_folders() -> None:
    """Remove the temporary folders of this process."""
    while _scratch_folders:
        shutil.rmtree(_scratch_folders.pop(), ignore_errors=True)


@contextmanager
def reading(path: Path | str, what: str, kind: type[ConformanceError]) -> Iterator[None]:
    """Convert exceptions raised while a file is read to `kind`, except for the package's own errors.

    Args:
        path: the file or folder.
        what: what the file is expected to be, such as "a trace".
        kind: the class of the error to raise.
    """
    try:
        yield
    except ConformanceError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the errors of some libraries do not derive from Exception
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        name = "" if isinstance(error, OSError | ValueError) and text else f"{type(error).__name__}: "
        raise kind(f"{path} cannot be read as {what}: {name}{text[:QUOTED_CHARACTERS]}") from error


def read_bytes(path: Path, limit: int = TEXT) -> bytes:
    """Return the content of a regular file; raises `ValueError` for other kinds of file and for more than `limit` bytes."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > limit:
            raise ValueError(f"it has {about.st_size} bytes, and at most {limit} are read")
        return file.read(limit)


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file; raises `ValueError` for invalid UTF-8 and in the cases of `read_bytes`."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path, form: type[T]) -> T:
    """Return the content of a JSON file as the type `form`; raises `ValueError` (`msgspec.ValidationError`) if it does not fit."""
    return msgspec.json.decode(read_bytes(path, JSON), type=form)


def require_printed(count: int) -> None:
    """Raise `ValueError` if there are more numbers than may be read from decimal text."""
    if count > PRINTED:
        raise ValueError(f"it has more than {PRINTED} values, which are for an .npz or .safetensors file")


def parsed_numbers(text: str, number: Callable[[str], Any]) -> Any:
    """Return parsed JSON with every number converted from its text by `number`.

    Raises:
        ValueError: the text is not JSON or has more than `PRINTED` values.
    """
    require_printed(text.count(","))
    return json.loads(text, parse_float=number, parse_int=number, parse_constant=number)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises `ValueError` if it is invalid, too large, or has too many dots in a line."""
    content = read_bytes(path, SETTINGS)
    if max(line.count(b".") for line in content.split(b"\n")) > DOTS:
        raise ValueError(f"a line has more than {DOTS} dots")
    return tomllib.loads(content.decode("utf-8"))


@contextmanager
def private_copy(path: Path, limit: int) -> Iterator[Path]:
    """Yield the path of a copy of a file of at most `limit` bytes of arrays, by which it can be opened or memory-mapped.

    The copy is in memory, has no name, and is sealed against truncation, which would end a process that has it mapped by SIGBUS: a
    candidate of this process could do it, too. It exists as long as the context or a mapping of it does.
    """
    _require_arrays(path, limit)
    in_memory = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(in_memory, "wb") as copy, path.open("rb") as original:
        shutil.copyfileobj(original, copy, _PIECE)
        copy.flush()
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        yield Path(f"/proc/self/fd/{copy.fileno()}")


def open_safetensors(path: Path, framework: str = "np", limit: int = OUTPUTS) -> Any:
    """Open a private copy of a safetensors file after checking the size of the file and of its header.

    Args:
        path: the file.
        framework: `pt` for torch tensors, which are views of the memory-mapped copy, or `np` for NumPy arrays, which are copies.
        limit: largest file size in bytes.

    Raises:
        ValueError: the file or its header is too large.
    """
    from safetensors import safe_open

    with private_copy(path, limit) as copy:
        with copy.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > JSON:
            raise ValueError(f"its header has {header} bytes, and at most {JSON} are read")
        return safe_open(copy, framework)


def read_safetensors(path: Path, prefix: str = "") -> tuple["Arrays", Mapping[str, str]]:
    """Return the arrays whose names start with `prefix` as NumPy arrays, and the file's metadata."""
    with open_safetensors(path) as file:
        names = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118 -- no mapping
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def read_npz(path: Path) -> "Arrays":
    """Return the arrays of an `.npz` file.

    Raises:
        ValueError: the file is too large, or an array has Python objects or states another size than is stored.
    """
    _require_arrays(path, OUTPUTS)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _require_size(sum(member.file_size for member in members), OUTPUTS, "unpacked it has")
        return {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> "npt.NDArray[Any]":
    with archive.open(member) as file:
        return _array(file, member.filename, member.file_size)


def read_npy(path: Path) -> "npt.NDArray[Any]":
    """Return the array of an `.npy` file; raises `ValueError` in the cases of `read_npz`."""
    _require_arrays(path, OUTPUTS)
    with path.open("rb") as file:
        return _array(file, path.name, path.stat().st_size)


def _array(file: IO[bytes], name: str, stored: int) -> "npt.NDArray[Any]":
    """Return an array read in NumPy's format, which may have at most `stored` bytes."""
    import numpy as np

    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, columns, dtype = read[np.lib.format.read_magic(file)](file)
    if dtype.hasobject:
        raise ValueError(f"{name} has objects of Python's, which are not loaded")
    size = prod(shape) * dtype.itemsize
    content = file.read(min(size, stored) + 1)
    if len(content) != size:
        raise ValueError(f"{name} says that it has {size} bytes, and has {len(content)}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if columns else "C")


def read_pickle(path: Path) -> dict[str, "torch.Tensor"]:
    """Return the tensors of a pickled state dict, loaded with torch's restricted unpickler (`weights_only`).

    Raises:
        ValueError: the file is too large, or contains anything but a dictionary of tensors by name.
    """
    import torch

    is_mapped = zipfile.is_zipfile(path)  # the format since torch 1.6; older files are read into memory
    with private_copy(path, ARRAYS if is_mapped else OUTPUTS) as copy:
        found = torch.load(copy, map_location="cpu", weights_only=True, mmap=is_mapped)
    if not isinstance(found, dict) or not all(isinstance(n, str) and isinstance(t, torch.Tensor) for n, t in found.items()):
        raise ValueError("it is no dictionary of tensors by name")
    return found


def require_regular(path: Path) -> None:
    """Raise `ValueError` unless the file is regular (a library would block on a pipe) and has at most `TEXT` bytes."""
    size = _regular_size(path)
    if size > TEXT:
        raise ValueError(f"it has {size} bytes, and at most {TEXT} are read")


def _require_arrays(path: Path, limit: int) -> None:
    _require_size(_regular_size(path), limit, "it has")


def _regular_size(path: Path) -> int:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    return about.st_size


def _require_size(size: int, limit: int, has: str) -> None:
    """Raise `ValueError` for more bytes of arrays than both the given limit and the user's own limit."""
    allowed = max(limit, _largest())
    if size > allowed:
        raise ValueError(f"{has} {size} bytes, and at most {allowed} are read; to read it set {LARGEST}={size} or more")


def _largest() -> int:
    text = os.environ.get(LARGEST, "0")
    if not text.isdecimal():
        raise UsageError(f"the variable {LARGEST} is {text!r:.40}, expected a number of bytes, as {2**34}")
    return int(text)
