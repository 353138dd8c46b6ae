"""The results file: JSON Lines, one header, a record a check and an activation, one footer. The truth of every report."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

SCHEMA_VERSION = 1

Outcome = Literal["pass", "fail", "error", "crash", "timeout", "skip", "xfail", "xpass", "not_observed"]


class _Record(msgspec.Struct, frozen=True, tag_field="kind", rename={"overall": "global"}):
    """A line of the file; `kind` says which."""


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
    goldens: dict[str, str]
    seeds: dict[str, int]


class Error(msgspec.Struct, frozen=True):
    """An error: rms and max in sigma (null at exact activations), largest absolute, where."""

    rms: float | None
    max: float | None
    max_abs: float
    index: tuple[int, ...]


class Fault(msgspec.Struct, frozen=True):
    """A fault that the filters accept."""

    name: str
    step: str
    amplitude: float
    z: float
    parameter: str | None
    estimate: float | None


class ActivationRecord(_Record, frozen=True, tag="activation"):
    """One activation's verdict; `global` is the global error."""

    implementation: str
    golden: str
    device: str
    dtype: str
    activation: str
    outcome: Outcome
    role: str | None
    local: Error | None
    overall: Error | None
    faults: list[Fault]
    arithmetic: str | None
    limits: dict[str, float]
    excess: float | None
    reason: str


class Sensitivity(msgspec.Struct, frozen=True):
    """How well one fault would have been seen: at its weakest place, and at how many of the places that it can strike."""

    fault: str
    weakest: str
    expected_z: float
    separable: int
    places: int
    parameter: str | None = None
    smallest: float | None = None


class CheckRecord(_Record, frozen=True, tag="check"):
    """One candidate on one golden."""

    implementation: str
    golden: str
    device: str
    dtype: str
    check: str
    outcome: Outcome
    reason: str
    seconds: float
    judged: int
    activations: int
    median_rms: float | None
    excludes: list[Sensitivity]


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


def read(path: Path) -> Iterator[Record]:
    """The records of a results file; a last line that was cut short is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line, type=Record)
