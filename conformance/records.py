"""The results file: JSON Lines, one header, a record a check and an activation, one footer. The truth of every report."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from conformance.errors import UsageError

SCHEMA_VERSION = 1

Outcome = Literal["pass", "fail", "error", "crash", "timeout", "skip", "xfail", "xpass", "not_observed"]


class _Record(msgspec.Struct, frozen=True, tag_field="kind", rename={"overall": "global"}):
    """A line of the file; `kind` says which."""


class GoldenRecord(msgspec.Struct, frozen=True):
    """A golden that is run on: results on different versions or digests are not compared silently."""

    version: int
    stored_digest: str
    weights_digest: str
    source: str


class Header(_Record, frozen=True, tag="header"):
    """What ran, where."""

    schema: int
    suite: str
    python: str
    torch: str
    transformers: str
    platform: str
    processor: str
    gpu: str | None
    threads: int
    goldens: dict[str, GoldenRecord]
    checkpoint: str | None
    false_alarm: float
    seed: int | None = 0
    examples: int = 0
    shard: str = "1/1"


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error: rms and max in sigma (null at exact activations), largest absolute, where."""

    rms: float | None
    max: float | None
    max_abs: float
    index: tuple[int, ...]


class FaultRecord(msgspec.Struct, frozen=True):
    """A fault that explains the error: `estimate`, its standard deviation and the right value where it is a number got wrong."""

    name: str
    step: str
    amplitude: float
    z: float
    parameter: str | None
    estimate: float | None
    deviation: float | None
    right: float | None = None


class ActivationRecord(_Record, frozen=True, tag="activation"):
    """One activation's verdict on one batch; `global` is the global error.

    `faults` together explain it best; `alternatives` are such sets that cannot be told from that on this batch; `anatomy` is what
    can be said where nothing explains it.
    """

    implementation: str
    golden: str
    device: str
    dtype: str
    batch: str
    activation: str
    outcome: Outcome
    role: str | None
    local: ErrorRecord | None
    overall: ErrorRecord | None
    faults: list[FaultRecord]
    arithmetic: str | None
    limits: dict[str, float]
    excess: float | None
    reason: str
    alternatives: list[list[FaultRecord]] = []
    anatomy: list[str] = []


class Sensitivity(msgspec.Struct, frozen=True):
    """How well one fault would have been seen: at its weakest place, and at how many of the places that it can strike.

    For a fault that is a number got wrong, `right` and `smallest`: the right value, and the nearest wrong one that shows, at the
    place where it shows best.
    """

    fault: str
    weakest: str
    expected_z: float
    separable: int
    places: int
    parameter: str | None = None
    right: float | None = None
    smallest: float | None = None


class CounterexampleRecord(msgspec.Struct, frozen=True):
    """The smallest example that fails: all that it takes to run it again. `network` is a golden, or `checkpoint:DIR`.

    `runs` are the inputs that were run, in order; `script` shows the failure without this file; `origin` is `module:name` of the
    candidate, where it is known.
    """

    network: str
    batch: dict[str, list[Any]]
    variation: dict[str, Any]
    runs: list[dict[str, list[Any]]]
    script: str
    origin: str = ""


class CheckRecord(_Record, frozen=True, tag="check"):
    """One check of one candidate on one golden; `judged` of `activations` were observed.

    Of a check that draws its batches, `tried` are how many, and `worst` the largest error over its limit among those that hold.
    """

    implementation: str
    golden: str
    device: str
    dtype: str
    check: str
    outcome: Outcome
    reason: str
    seconds: float
    declared: bool
    executed: bool
    exit_code: int
    judged: int
    activations: int
    median_rms: float | None
    excludes: list[Sensitivity]
    tried: int = 0
    worst: float | None = None
    counterexample: CounterexampleRecord | None = None


class Footer(_Record, frozen=True, tag="footer"):
    """The counts."""

    declared: int
    ran: int
    outcomes: dict[str, int]
    exit_code: int


Record = Header | ActivationRecord | CheckRecord | Footer


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one line."""
    return msgspec.json.schema(Record)


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


@dataclass(frozen=True)
class CaseRecords:
    """A check, and the activations that were judged for it."""

    check: CheckRecord
    activations: tuple[ActivationRecord, ...]


@dataclass(frozen=True)
class Results:
    """A results file, read, or several as one.

    Attributes:
        footer: None where it is to be counted anew.
        finished: whether each run came to its end.
        shards: which shards of runs they are, as `K/N`.
    """

    header: Header | None
    cases: tuple[CaseRecords, ...]
    footer: Footer | None
    finished: bool = True
    shards: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that are spoken of and not there."""
        counts = sorted({int(shard.partition("/")[2]) for shard in self.shards})
        return tuple(shard for n in counts for k in range(1, n + 1) if (shard := f"{k}/{n}") not in self.shards)

    @property
    def complete(self) -> bool:
        """Whether it is all there is."""
        return self.finished and not self.missing

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        """Every check."""
        return tuple(case.check for case in self.cases)

    @property
    def activations(self) -> tuple[ActivationRecord, ...]:
        """Every activation."""
        return tuple(a for case in self.cases for a in case.activations)


def merged(all_results: Sequence[Results]) -> Results:
    """Several runs as one, the first one's header.

    Raises:
        UsageError: two ran on different versions of a golden.
    """
    headers = [r.header for r in all_results if r.header is not None]
    goldens: dict[str, GoldenRecord] = {}
    for header in headers:
        for name, golden in header.goldens.items():
            if goldens.setdefault(name, golden) != golden:
                raise UsageError(f"the runs are on different versions of the golden {name}; run them again on one")
    footer = all_results[0].footer if len(all_results) == 1 else None
    cases = tuple(case for r in all_results for case in r.cases)
    shards = tuple(shard for r in all_results for shard in r.shards)
    return Results(headers[0] if headers else None, cases, footer, all(r.finished for r in all_results), shards)


def read(path: Path) -> Results:
    """The records of a results file, or of several put end to end; one that was cut short is read as far as it goes.

    Raises:
        UsageError: it cannot be opened, is no results file, or is of another schema version.
    """
    records: list[Record] = []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # the last line was being written
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise UsageError(f"{path}, line {number} is no record of schema {SCHEMA_VERSION}: {error}") from error
    headers = [r for r in records if isinstance(r, Header)]
    if any(header.schema != SCHEMA_VERSION for header in headers):
        raise UsageError(f"{path} is of another schema, this is {SCHEMA_VERSION}: run the candidates again")
    return merged(_runs(records)) if records else Results(None, (), None, finished=False)


def _runs(records: Sequence[Record]) -> list[Results]:
    """A run from header to footer each; activations stand before the check that they belong to."""
    runs: list[Results] = []
    header, cases, waiting = None, [], []  # type: Header | None, list[CaseRecords], list[ActivationRecord]
    for record in records:
        if isinstance(record, Header):
            if header or cases or waiting:
                runs.append(_run(header, cases, None))
            header, cases, waiting = record, [], []
        elif isinstance(record, ActivationRecord):
            waiting.append(record)
        elif isinstance(record, CheckRecord):
            cases.append(CaseRecords(record, tuple(waiting)))
            waiting = []
        else:
            runs.append(_run(header, cases, record))
            header, cases, waiting = None, [], []
    if header or cases or waiting:
        runs.append(_run(header, cases, None))
    return runs


def _run(header: Header | None, cases: Sequence[CaseRecords], footer: Footer | None) -> Results:
    return Results(header, tuple(cases), footer, footer is not None, (header.shard,) if header else ())
