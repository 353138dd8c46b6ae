"""The results file, in JSON Lines with one record per line.

Files are written so that a crash loses nothing, and incomplete files can be read. Each line ends with a digest of the run up to
there, which is verified when a file is read: an edited verdict, error, limit or name, and a line removed or moved, is an error that
names the line. The digest has no key, so that it does not stop who computes it anew.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from conformance.errors import OutputError, UsageError
from conformance.model.files import read_bytes, reading
from conformance.results.merge import RunRecords, merged
from conformance.results.records import SCHEMA_VERSION, ActivationRecord, CaseRecords, CheckRecord, Footer, Header, Record, Results

_RECORD: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
# Limits of a file: bytes (several times those of a run of every candidate on every golden in four formats), values, lists.
LARGEST, _VALUES, _LISTS = 2**27, 2**24, 2**22
DIGEST = b',"digest":"'


class Writer:
    """A writer of a results file, flushed after each record and synced to disk after each check, so that a crash loses no verdict.

    The file is locked while it is open, so that no other run writes to it.

    Attributes:
        path: the file.

    Raises:
        UsageError: another run writes to the file, or it is not a regular file.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Create the file and its folder; if `resume`, existing content stays in place until `keep` is called."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = _locked(path)
        self._digest, self._size = hashlib.sha256(), 0  # of what is written
        if not resume:
            self.keep(0)

    def keep(self, size: int) -> None:
        """Truncate the file to its first `size` bytes and continue writing there."""
        self._file.truncate(size)
        self._file.seek(0)
        self._digest, self._size = hashlib.sha256(self._file.read(size)), size

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def write(self, record: Record) -> None:
        """Write one record as a line; raises `ResultsFileError` if it cannot be written."""
        try:
            line = with_digest(self._digest, msgspec.json.encode(record).removesuffix(b"}"))
            self._size += len(line)
            left = memoryview(line)
            while left:  # on a nearly full disk, only part may be written
                left = left[self._file.write(left) :]
            if isinstance(record, CheckRecord | Footer):
                os.fsync(self._file.fileno())
        except OSError as error:
            raise ResultsFileError(f"{self.path} cannot be written: {error.strerror}") from error

    def require_unchanged(self) -> None:
        """Raise `ResultsFileError` unless the file of that path has what was written, and nothing else."""
        try:
            is_lost = hashlib.sha256(read_bytes(self.path, self._size)).digest() != self._digest.digest()
        except (OSError, ValueError):
            is_lost = True
        if is_lost:
            raise ResultsFileError(f"{self.path} has been deleted or changed while it was written: the results are in no file")


class ResultsFileError(OutputError):
    """The results file cannot be written any further, or is no longer what was written."""


class EditedResultsError(UsageError):
    """A line of a results file is not what the run wrote."""

    exit_code = 1


def with_digest(digest: "hashlib._Hash", fields: bytes) -> bytes:
    """Return the line of a record, given its JSON without the last brace, and update the digest of the run by the line."""
    digest.update(fields)
    end = DIGEST + digest.hexdigest()[:16].encode() + b'"}\n'
    digest.update(end)
    return fields + end


def _locked(path: Path) -> BinaryIO:
    """Return the file, opened and locked for this process until it is closed; links and pipes are not followed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        what = "it is a link" if path.is_symlink() else error.strerror
        raise UsageError(f"{path} cannot be opened for writing: {what}") from error
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path} is not a regular file")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise UsageError(f"another run writes {path}; wait for its end, or choose another folder with -o") from error
    except UsageError:
        file.close()
        raise
    except OSError:  # the file system does not support locks
        pass
    return file


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder; wait until no other process that uses this function has it locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # the file system does not support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def resumable(path: Path) -> tuple[RunRecords, int]:
    """Return the run in a file up to its last complete check, and the size of that part in bytes.

    Raises:
        UsageError: the file contains several runs, or cannot be read.
    """
    found = runs(path)
    if len(found) > 1:
        raise UsageError(f"{path} holds {len(found)} runs; a run that is resumed stands alone in its file")
    size = checked = 0
    for line in path.read_bytes().splitlines(keepends=True):
        size += len(line)
        if line.endswith(b"\n") and isinstance(_record(line, 0, path), CheckRecord | Header):
            checked = size
    return found[0], checked


def read_results(*paths: Path | str) -> Results:
    """Return the results of one or more files, merged.

    Example:
        >>> read_results("no-such-folder/results.jsonl")
        Traceback (most recent call last):
        ...
        conformance.errors.UsageError: no-such-folder/results.jsonl cannot be read: No such file or directory

    Raises:
        UsageError: a file cannot be opened, is not a results file, or has another schema version; or the results cannot be merged.
    """
    return merged([run for path in paths for run in runs(Path(path))])


def runs(path: Path) -> list[RunRecords]:
    """Return the runs in a file, at least one; there are several if results files were concatenated.

    A run that was interrupted is incomplete.

    Raises:
        UsageError: the file cannot be opened, is not a results file, or has another schema version.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; {_files_in(path)}")
    with reading(path, "results", UsageError):
        content = read_bytes(path, LARGEST)
        if content.count(b",") > _VALUES or content.count(b"[") + content.count(b"{") > _LISTS:
            raise ValueError(f"it has more than {_VALUES} values, or {_LISTS} lists of them")
        lines = content.splitlines(keepends=True)
        del content
    whole = [line for line in lines if line.endswith(b"\n")]  # a last line without a line end is incomplete
    records = [_record(line, number, path) for number, line in enumerate(whole, 1)]
    if any(isinstance(r, Header) and r.schema != SCHEMA_VERSION for r in records):
        raise UsageError(f"{path} is of another schema, this is {SCHEMA_VERSION}: run the candidates again")
    _require_as_written(whole, records, path)
    parts = _parts(records) or [[]]
    names = [str(path)] if len(parts) == 1 else [f"{path}, run {n}" for n in range(1, len(parts) + 1)]
    return [_run(part, name) for part, name in zip(parts, names, strict=True)]


def _files_in(folder: Path) -> str:
    """Return which results files in a folder to give, of which there are several after a run under xdist."""
    found = sorted(str(path) for path in folder.glob("results*.jsonl"))
    if not found:
        return "give a results file"
    return f"give its results file{'s' if len(found) > 1 else ''} {' '.join(found)}"


def _record(line: bytes, number: int, path: Path) -> Record:
    try:
        return _RECORD.decode(line)
    except Exception:
        with reading(f"{path}, line {number}", f"a record of schema {SCHEMA_VERSION}", UsageError):
            raise


def _require_as_written(lines: Sequence[bytes], records: Sequence[Record], path: Path) -> None:
    """Raise `EditedResultsError` at the first line whose digest is not that of its run, which a header begins, up to there."""
    digest = hashlib.sha256()
    for number, (line, record) in enumerate(zip(lines, records, strict=True), 1):
        if isinstance(record, Header):
            digest = hashlib.sha256()
        if line != with_digest(digest, line.rpartition(DIGEST)[0]):
            raise EditedResultsError(
                f"contradiction: {path}, line {number}, {_described(record)}, is not what the run wrote: it was changed, or lines "
                "before it were removed or moved; restore the file, or run the candidates again"
            )


def _described(record: Record) -> str:
    match record:
        case ActivationRecord():
            return f"{record.activation} of {record.implementation} on {record.golden}, {record.device}, {record.dtype}"
        case CheckRecord():
            return f"the check {record.check} of {record.case}"
        case _:
            return "the header" if isinstance(record, Header) else "the footer"


def _parts(records: Iterable[Record]) -> list[list[Record]]:
    """Return the records of each run; a header starts a run, and a footer ends it."""
    parts: list[list[Record]] = []
    ended = True
    for record in records:
        if ended or isinstance(record, Header):
            parts.append([])
        parts[-1].append(record)
        ended = isinstance(record, Footer)
    return parts


def _run(records: Iterable[Record], source: str) -> RunRecords:
    """Return the run with the given records; activations precede the check that they belong to."""
    header, footer = None, None
    cases: list[CaseRecords] = []
    waiting: list[ActivationRecord] = []
    for record in records:
        match record:
            case Header():
                header = record
            case ActivationRecord():
                waiting.append(record)
            case CheckRecord():
                cases.append(CaseRecords(record, tuple(waiting)))
                waiting = []
            case Footer():
                footer = record
    return RunRecords(header, tuple(cases), footer, source)
