"""Read files from any source: first the size, then the form, then the values. What is wrong raises one of the project's errors.

No file is read beyond its limits, and nothing that it says of its size is believed. The limits of text are chosen for 5 s and 1
GiB; `python -m conformance.benchmarks.readers --full` measures files at these limits, on one machine.
"""

import json
import os
import stat
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import msgspec

from conformance.errors import ConformanceError, DependencyMissingError, UsageError

if TYPE_CHECKING:  # `bert-conformance list` reads manifests, and needs no NumPy
    import numpy.typing as npt
    import torch

    Arrays = dict[str, npt.NDArray[Any]]

TEXT = 16 * 2**20  # bytes of a file of text: a tokenizer.json of 900,000 pieces
JSON = 4 * 2**20  # bytes of a configuration, a manifest or batches: these are ids of some hundred thousand tokens
SETTINGS, DOTS = 2**18, 100  # bytes of a file of TOML, and dots in a line of it: tomllib takes cubic time of a key's parts
PRINTED = 2**19  # numbers that are read with their digits, an object each: a hidden state of 4 x 128 x 768 is fewer
ARRAYS = 3 * 2**29  # bytes of a file of parameters, which is mapped into memory: BERT-large in float32 has 1.34e9
OUTPUTS = 2**28  # bytes of arrays that are unpacked, or read all together: twice a hidden state of 64 x 512 x 1024 in float32
LARGEST = "BERT_CONFORMANCE_LARGEST_FILE"  # a variable: bytes that take the place of the two limits above where they are more
_ROWS = 64  # of a Parquet file that are read together
SHOWN = 300  # characters of what is wrong that are quoted

ALLOW_PICKLE = (
    "BERT_CONFORMANCE_ALLOW_PICKLE"  # set to 1, checkpoints that are pickled are read; processes started from here inherit it
)

SCRATCH = "BERT_CONFORMANCE_SCRATCH"  # where a worker's folders lie, which whoever ends the worker removes

T = TypeVar("T")


def scratch_folder() -> Path:
    """A new folder, which the caller removes; what a worker leaves there is removed when the worker has ended."""
    return Path(tempfile.mkdtemp(prefix="bert-conformance-", dir=os.environ.get(SCRATCH)))


@contextmanager
def reading(path: Path | str, what: str, kind: type[ConformanceError]) -> Iterator[None]:
    """Around the reading of a file: whatever is raised inside that is not the project's own comes out as `kind`.

    Args:
        path: the file or folder.
        what: what it is expected to be, as "a trace".
        kind: of the error.
    """
    try:
        yield
    except ConformanceError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # some libraries' errors are no Exception
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        name = "" if isinstance(error, OSError | ValueError) and text else f"{type(error).__name__}: "
        raise kind(f"{path} cannot be read as {what}: {name}{text[:SHOWN]}") from error


def read_bytes(path: Path, limit: int = TEXT) -> bytes:
    """A regular file's content; `ValueError` for another kind of file, and for one of more than `limit` bytes."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a regular file")
        if about.st_size > limit:
            raise ValueError(f"it has {about.st_size} bytes, and at most {limit} are read")
        return file.read(limit)


def read_text(path: Path) -> str:
    """A file of UTF-8; `ValueError` as for `read_bytes`, and where it is none."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path, form: type[T]) -> T:
    """A file of JSON, of that form; `ValueError` says where it is of another (`msgspec.ValidationError`)."""
    return msgspec.json.decode(read_bytes(path, JSON), type=form)


def require_printed(count: int) -> None:
    """Raise `ValueError` for more numbers than are read with their digits."""
    if count > PRINTED:
        raise ValueError(f"it has more than {PRINTED} values, which are for an .npz or .safetensors file")


def parsed_json(text: str | None, form: type[T]) -> T:
    """JSON that stands in a file's metadata; `ValueError` where it is not there."""
    if text is None:
        raise ValueError("its metadata say nothing of it")
    return msgspec.json.decode(text, type=form)


def parsed_numbers(text: str, number: Callable[[str], Any]) -> Any:
    """JSON in which `number` makes every number of its text; `ValueError` where it is none, or has more than `PRINTED` values."""
    require_printed(text.count(","))
    return json.loads(text, parse_float=number, parse_int=number, parse_constant=number)


def read_toml(path: Path) -> dict[str, Any]:
    """A file of TOML."""
    content = read_bytes(path, SETTINGS)
    if max(line.count(b".") for line in content.split(b"\n")) > DOTS:
        raise ValueError(f"a line has more than {DOTS} dots")
    return tomllib.loads(content.decode("utf-8"))


def open_safetensors(path: Path, framework: str = "np", limit: int = OUTPUTS) -> Any:
    """An open safetensors file, whose header has been checked against its size; `framework` is what its tensors are of.

    Torch's tensors are views of the file, which is mapped into memory; NumPy's are copies.
    """
    from safetensors import safe_open

    _require_arrays(path, limit)
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > JSON:
        raise ValueError(f"its header has {header} bytes, and at most {JSON} are read")
    return safe_open(path, framework)


def read_safetensors(path: Path, prefix: str = "") -> tuple["Arrays", Mapping[str, str]]:
    """Its arrays in NumPy whose names begin so, and its metadata."""
    with open_safetensors(path) as file:
        names = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118 -- no mapping
        return {name: file.get_tensor(name) for name in names}, file.metadata() or {}


def read_npz(path: Path) -> "Arrays":
    """The arrays of an `.npz` file: none of Python's objects, and none that is larger than what is stored of it."""
    _require_arrays(path, OUTPUTS)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _require_size(sum(member.file_size for member in members), OUTPUTS, "unpacked it has")
        return {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> "npt.NDArray[Any]":
    with archive.open(member) as file:
        return _array(file, member.filename, member.file_size)


def read_npy(path: Path) -> "npt.NDArray[Any]":
    """The array of an `.npy` file, as for `read_npz`."""
    _require_arrays(path, OUTPUTS)
    with path.open("rb") as file:
        return _array(file, path.name, path.stat().st_size)


def _array(file: IO[bytes], name: str, stored: int) -> "npt.NDArray[Any]":
    """An array in NumPy's format, of at most so many bytes."""
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


def read_parquet(path: Path) -> dict[str, list[Any]]:
    """The columns of a Parquet file by name, a batch of rows at a time; `ValueError` where unpacked they are too large.

    Raises:
        DependencyMissingError: pyarrow is not installed.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DependencyMissingError("a Parquet file is read by pyarrow; install it with: pip install pyarrow") from None
    _require_arrays(path, OUTPUTS)
    columns: dict[str, list[Any]] = {}
    size = count = 0
    with ParquetFile(path) as file:
        for rows in file.iter_batches(_ROWS):
            size += rows.nbytes
            _require_size(size, OUTPUTS, "unpacked it has at least")
            count += rows.num_rows
            for name, column in rows.to_pydict().items():
                columns.setdefault(name, []).extend(column)
    if not count:
        raise ValueError("it has no rows")
    return columns


def read_pickle(path: Path) -> dict[str, "torch.Tensor"]:
    """The tensors of a pickled state dict, by torch's unpickler of tensors alone; `ValueError` where it holds anything else."""
    import torch

    is_mapped = zipfile.is_zipfile(path)  # as torch writes since 1.6; what is older is read into memory
    _require_arrays(path, ARRAYS if is_mapped else OUTPUTS)
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    if not isinstance(found, dict) or not all(isinstance(n, str) and isinstance(t, torch.Tensor) for n, t in found.items()):
        raise ValueError("it is no dictionary of tensors by name")
    return found


def require_regular(path: Path, limit: int = TEXT) -> None:
    """Raise `ValueError` for what is no regular file, or is too large: a library would wait for a pipe."""
    size = _regular_size(path)
    if size > limit:
        raise ValueError(f"it has {size} bytes, and at most {limit} are read")


def _require_arrays(path: Path, limit: int) -> None:
    _require_size(_regular_size(path), limit, "it has")


def _regular_size(path: Path) -> int:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    return about.st_size


def _require_size(size: int, limit: int, has: str) -> None:
    """Raise `ValueError` for more bytes of arrays than the limit, or than the user's own."""
    allowed = max(limit, _largest())
    if size > allowed:
        raise ValueError(f"{has} {size} bytes, and at most {allowed} are read; to read it set {LARGEST}={size} or more")


def _largest() -> int:
    text = os.environ.get(LARGEST, "0")
    if not text.isdecimal():
        raise UsageError(f"the variable {LARGEST} is {text!r:.40}, expected a number of bytes, as {2**34}")
    return int(text)
