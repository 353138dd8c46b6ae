"""Rows of the changes between two runs, for programs. Pure functions."""

from collections.abc import Iterable, Iterator
from typing import Any

from conformance.report.changes.changes import KINDS, ActivationChange, CaseChange, Changes, Kind
from conformance.report.changes.changes_words import NOTHING, changed_within_noise, limit_of, title
from conformance.report.coverage_sentences import place, rendered
from conformance.report.findings import Finding
from conformance.results.records import ActivationRecord, CheckRecord


def rows(changes: Changes) -> list[dict[str, Any]]:
    """Return one row for each changed check, activation on a batch, and mistake, worst first, followed by rows of kind `note`.

    Every row has `change`, `what`, `before` and `after`. Rows of checks also have the coverage, rows of activations the local
    errors, and rows of mistakes the sentence; all three identify the case.
    """
    found = sorted((row for case in changes.cases for row in _rows(case)), key=lambda row: KINDS.index(row["change"]))
    noise = [_row("note", f"{title(case)}: {changed_within_noise(case)}") for case in changes.cases if case.within_noise]
    environment = [_row("note", d.what, d.before, d.after) for d in changes.environment]
    return [*found, *noise, *environment, *(_row("note", note) for note in changes.notes)]


def _rows(case: CaseChange) -> Iterator[dict[str, Any]]:
    if case.kind:
        sides = {"judged_before": _judged(case.before), "judged_after": _judged(case.after)}
        yield _of(case, _row(case.kind, title(case), _outcome(case.before), _outcome(case.after))) | sides
    yield from (_of(case, _activation(case, change)) for change in case.activations)
    if case.is_compared:
        yield from (_of(case, row) for row in _mistakes(case, "worse", case.appeared))
        yield from (_of(case, row) for row in _mistakes(case, "better", case.vanished))


def _of(case: CaseChange, row: dict[str, Any]) -> dict[str, Any]:
    c = case.case
    return row | {"implementation": c.implementation, "golden": c.golden, "device": c.device, "dtype": c.dtype, "check": c.check}


def _activation(case: CaseChange, change: ActivationChange) -> dict[str, Any]:
    record = change.record
    row = _row(change.kind, f"{title(case)}: {place(record)}", _outcome(change.before), _outcome(change.after))
    errors = {"local_before": _error(change.before), "local_after": _error(change.after)}
    return row | {"activation": record.activation, "batch": record.batch, "reason": record.reason} | errors


def _mistakes(case: CaseChange, kind: Kind, found: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    sides = (NOTHING, "mistake") if kind == "worse" else ("mistake", NOTHING)
    for finding in found:
        sentence, *about = rendered(finding, case.layers)
        yield _row(kind, f"{title(case)}: {sentence}", *sides) | {"mistake": sentence, "about": about}


def _row(change: str, what: str, before: str = NOTHING, after: str = NOTHING) -> dict[str, Any]:
    return {"change": change, "what": what, "before": before, "after": after}


def _outcome(record: ActivationRecord | CheckRecord | None) -> str:
    return record.outcome if record else NOTHING


def _judged(check: CheckRecord | None) -> int | None:
    return check.judged if check else None


def _error(record: ActivationRecord | None) -> dict[str, float | None] | None:
    if record is None or record.local is None:
        return None
    return {"rms": record.local.rms, "max": record.local.max, "limit": limit_of(record)}
