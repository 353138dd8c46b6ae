"""The results file: JSON Lines, a record a line. How it is written, so that a crash loses nothing, and read, as far as it goes."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from conformance.errors import UsageError
from conformance.results.merge import merged
from conformance.results.records import SCHEMA_VERSION, ActivationRecord, CaseRecords, CheckRecord, Footer, Header, Record, Results
from conformance.results.shards import Run


class Writer:
    """Writes a results file: flushed a record, fsynced a check, so that a crash loses nothing that was judged."""

    def __init__(self, path: Path) -> None:
        """Create the file and its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        """The writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def write(self, record: Record) -> None:
        """One line."""
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        if isinstance(record, CheckRecord | Footer):
            os.fsync(self._file.fileno())


def read_results(*paths: Path | str) -> Results:
    """The results of a file, or of several as one.

    Example:
        >>> read_results("no-such-folder/results.jsonl")
        Traceback (most recent call last):
        ...
        conformance.errors.UsageError: no-such-folder/results.jsonl cannot be read: No such file or directory

    Raises:
        UsageError: one cannot be opened, is no results file, or is of another schema version; or they cannot be put together.
    """
    return merged([run for path in paths for run in runs(Path(path))])


def runs(path: Path) -> list[Run]:
    """Those of a file, at least one: several where it was put together end to end. One that was cut short ends where it ends.

    Raises:
        UsageError: it cannot be opened, is no results file, or is of another schema version.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    whole = (line for line in lines if line.endswith(b"\n"))  # the last one was being written where it has no end
    records = [_record(line, number, path) for number, line in enumerate(whole, 1)]
    if any(isinstance(r, Header) and r.schema != SCHEMA_VERSION for r in records):
        raise UsageError(f"{path} is of another schema, this is {SCHEMA_VERSION}: run the candidates again")
    parts = _parts(records) or [[]]
    names = [str(path)] if len(parts) == 1 else [f"{path}, run {n}" for n in range(1, len(parts) + 1)]
    return [_run(part, name) for part, name in zip(parts, names, strict=True)]


def _record(line: bytes, number: int, path: Path) -> Record:
    try:
        return msgspec.json.decode(line, type=Record)  # type: ignore[no-any-return]  # a union, for which it says Any
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(f"{path}, line {number} is no record of schema {SCHEMA_VERSION}: {error}") from error


def _parts(records: Iterable[Record]) -> list[list[Record]]:
    """The records of a run each: a header begins one, and a footer ends it."""
    parts: list[list[Record]] = []
    ended = True
    for record in records:
        if ended or isinstance(record, Header):
            parts.append([])
        parts[-1].append(record)
        ended = isinstance(record, Footer)
    return parts


def _run(records: Iterable[Record], source: str) -> Run:
    """Activations stand before the check that they belong to."""
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
    return Run(header, tuple(cases), footer, source)
