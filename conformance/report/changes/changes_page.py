"""The page of what changed between two runs: worst first, errors before and after on one axis. A pure function of the changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.report.changes.between import KINDS, CaseChange, Changes, Kind
from conformance.report.changes.words import (
    NOTHING,
    TONES,
    by_activation,
    coverage,
    figures,
    headline,
    is_better,
    limit_of,
    mistakes,
    moved,
    outcome,
    title,
    tone,
    why,
)
from conformance.report.changes.words import ChangeRow as Changed
from conformance.report.html.axis import Axis, axis_of, sigma
from conformance.report.html.page import page
from conformance.results.records import ActivationRecord


@dataclass(frozen=True)
class ChangeLine:
    """One activation that changed: what is reported of it, and where it stands on the axis before and after, in percent."""

    name: str
    batches: str
    outcome: str
    rms: str
    largest: str
    limit: str
    note: str
    band: float | None
    before: float | None
    after: float | None
    fails: bool


@dataclass(frozen=True)
class Group:
    """The activations that changed in one way."""

    kind: Kind
    tone: str
    lines: tuple[ChangeLine, ...]


@dataclass(frozen=True)
class Card:
    """One case: its outcome in the tone of its own change, the tone of the worst of all changes, and what is reported of them.

    `folded` is what is better in a case that is worse.
    """

    title: str
    outcome: str
    turned: str
    coverage: str
    tone: str
    reason: str
    mistakes: tuple[tuple[str, ...], ...]
    vanished: tuple[tuple[str, ...], ...]
    groups: tuple[Group, ...]
    folded: tuple[Group, ...]
    moved: str


@dataclass(frozen=True)
class Unchanged:
    """A case in which nothing changed."""

    title: str
    outcome: str
    coverage: str
    moved: str


def changes_page(changes: Changes) -> str:
    """The whole page."""
    axis = axis_of(_errors(changes))
    return page(
        "changes.html",
        headline(changes).split(": ")[0].capitalize() + f": from {changes.names[0]} to {changes.names[1]}",
        changes=changes,
        headline=headline(changes),
        tone=tone(changes),
        cards=[_card(case, axis) for case in changes.cases if case.kinds],
        unchanged=[_unchanged(case) for case in changes.cases if not case.kinds],
        ticks=axis.ticks,
    )


def _errors(changes: Changes) -> list[float | None]:
    records = (r for case in changes.cases for change in case.activations for r in (change.before, change.after))
    return [_rms(record) for record in records]


def _rms(record: ActivationRecord | None) -> float | None:
    return record.local.rms if record and record.local else None


def _card(case: CaseChange, axis: Axis) -> Card:
    better = is_better(case)
    return Card(
        title(case),
        outcome(case),
        TONES[case.kind] if case.kind else "",
        coverage(case),
        "good" if better else TONES[KINDS[case.severity]],
        why(case),
        tuple(mistakes(case, ["worse"])),
        tuple(mistakes(case, ["better"])),
        _groups(case, KINDS if better else [kind for kind in KINDS if kind != "better"], axis),
        _groups(case, () if better else ["better"], axis),
        moved(case.moved, case.compared) if case.moved else "",
    )


def _groups(case: CaseChange, kinds: Sequence[Kind], axis: Axis) -> tuple[Group, ...]:
    found = ((kind, tuple(_line(row, axis) for row in by_activation(case, kind))) for kind in kinds)
    return tuple(Group(kind, TONES[kind], lines) for kind, lines in found if lines)


def _line(row: Changed, axis: Axis) -> ChangeLine:
    change = row.worst
    before, after = change.before, change.after
    return ChangeLine(
        row.name,
        row.batches,
        figures(change)[0],
        _pair(_rms(before), _rms(after)),
        _pair(*(r.local.max if r and r.local else None for r in (before, after))),
        _sigma(limit_of(change.record)),
        change.record.reason,
        axis.at(limit_of(change.record)),
        axis.at(_rms(before)),
        axis.at(_rms(after)),
        after is not None and after.outcome != "pass",
    )


def _pair(before: float | None, after: float | None) -> str:
    return "" if before is None and after is None else f"{_sigma(before) or NOTHING} → {_sigma(after) or NOTHING}"


def _sigma(value: float | None) -> str:
    return "" if value is None else f"{sigma(value)} σ"


def _unchanged(case: CaseChange) -> Unchanged:
    return Unchanged(title(case), outcome(case), coverage(case), moved(case.moved, case.compared) if case.moved else "")
