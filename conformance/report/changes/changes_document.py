"""Document of the changes between two runs, and the same as rows for programs. Pure functions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from conformance.report.axis import Axis, axis_of
from conformance.report.changes.changes import KINDS, ActivationChange, CaseChange, Changes, Kind
from conformance.report.changes.changes_words import (
    NOTHING,
    TONES,
    by_activation,
    changed_within_noise,
    counts,
    coverage,
    figures,
    headline,
    is_better,
    limit_of,
    mistakes,
    outcome,
    same_as_new_in_values,
    title,
    tone,
    why,
)
from conformance.report.coverage_sentences import number, place, rendered
from conformance.report.document import (
    Abridged,
    Block,
    Column,
    Document,
    Folded,
    Heading,
    Headline,
    Items,
    Lists,
    Paragraph,
    Points,
    Row,
    Section,
    tabled,
)
from conformance.report.findings import Finding
from conformance.results.records import ActivationRecord, CheckRecord

_READING = {
    "worse, better": "Another outcome than before, or a failure that is larger or smaller by more than noise. A mistake is new at "
    "the places at which it was not found before.",
    "gone, new": "No longer exposed or checked, or for the first time.",
    "changed": "It passes both times, but its local error in σ changed significantly: if the smaller error were the scale of the "
    "candidate's noise, the larger one would fail. Or it fails as before, and is now declared as a known failure.",
    "changed by no more than noise": "The values differ between the runs, but not significantly.",
    "local rms, max": "How far a step's result is from the exact one for the inputs that the candidate itself gave it, in units of "
    "σ, the standard deviation of a correct implementation's rounding. Of several batches, the one on which it is worst is shown.",
}


def document(changes: Changes) -> Document:
    """Return the document: verdict, possible causes, then the cases, worst first; improvements are folded."""
    axis = axis_of(_rms(r) for case in changes.cases for c in case.activations for r in (c.before, c.after))
    blocks = (
        Headline(headline(changes), tone(changes)),
        *_beside(changes),
        *([Abridged((Heading("Changes, worst first", level=2),))] if any(case.kinds for case in changes.cases) else []),
        *(
            _section(case, [k for k in KINDS if k != "better"], axis, same_as_new_in_values(case, changes.cases))
            for case in changes.cases
            if case.kinds and not is_better(case)
        ),
        *_better(changes, axis),
        *_unchanged(changes),
        Abridged((Heading("How to read this", level=2), Lists.of_terms(_READING))),
    )
    return Document("What changed between two runs", blocks)


def _beside(changes: Changes) -> Iterator[Block]:
    yield Paragraph(f"from {changes.names[0]} to {changes.names[1]}")
    if changes.environment:
        differing = "; ".join(f"{d.what} {d.before} → {d.after}" for d in changes.environment)
        yield Paragraph(f"possible causes: {differing}")
    yield from (Paragraph(note, "odd") for note in changes.notes)


def _section(case: CaseChange, kinds: Sequence[Kind], axis: Axis, same: str = "") -> Section:
    verdict = ", ".join(part for part in (outcome(case), coverage(case)) if part)
    heading = Heading(title(case), verdict, TONES[case.kind] if case.kind else "")
    return Section((heading, *_details(case, kinds, axis, same)), "good" if is_better(case) else TONES[KINDS[case.severity]])


def _better(changes: Changes, axis: Axis) -> Iterator[Block]:
    """Yield the improvements, folded: cases without deterioration in full, and the improved parts of other cases."""
    cases = [case for case in changes.cases if "better" in case.kinds]
    if cases:
        sections = (_section(case, KINDS if is_better(case) else ("better",), axis) for case in cases)
        yield Folded(f"better: {', '.join(counts(changes, ['better']))}", tuple(sections))


def _details(case: CaseChange, kinds: Sequence[Kind], axis: Axis, same: str) -> Iterator[Block]:
    """Yield what changed in a case; `same` is a sentence that replaces its new mistakes, since another case has them."""
    if reason := why(case):
        yield Paragraph(reason)
    if same:
        yield Paragraph(same)
    if found := mistakes(case, [kind for kind in kinds if not same or kind != "worse"]):
        yield Items(tuple(found))
    texts = (Column("batches"), Column("outcome"), Column("local rms"), Column("max", spare=1), Column("limit"))
    columns = (Column("activation"), Column("○ before ● after", ticks=axis.ticks), *texts, Column("what it says", is_text=True))
    yield from tabled(
        columns, [(kind, [_row(change, batches, axis) for change, batches in by_activation(case, kind)]) for kind in kinds]
    )
    if case.within_noise and "changed" in kinds:
        yield Paragraph(changed_within_noise([case]))


def _row(change: ActivationChange, batches: str, axis: Axis) -> Row:
    before, after = (axis.at(_rms(record)) for record in (change.before, change.after))
    points = Points((before, after), axis.at(limit_of(change.record)), joined=True)
    fails = change.after is not None and change.after.outcome != "pass"
    return Row((place(change.record), points, batches, *figures(change)), "bad" if fails else "")


def _rms(record: ActivationRecord | None) -> float | None:
    return record.local.rms if record and record.local else None


def _unchanged(changes: Changes) -> Iterator[Block]:
    cases = [case for case in changes.cases if not case.kinds]
    if cases:
        outcomes = Counter(case.record.outcome for case in cases)
        parts = [", ".join(f"{n} {what}" for what, n in outcomes.most_common())]
        if any(case.within_noise for case in cases):
            parts.append(changed_within_noise(cases))
        yield Heading(f"no change in {number(len(cases), 'check')}", "; ".join(parts), level=2)
        columns = (Column("check"), *(Column(head, is_text=True) for head in ("outcome", "judged", "within noise")))
        rows = [(title(c), outcome(c), coverage(c), changed_within_noise([c]) if c.within_noise else "") for c in cases]
        yield Abridged((Folded(number(len(cases), "check"), tuple(tabled(columns, [("", rows)]))),))


def rows(changes: Changes) -> list[dict[str, Any]]:
    """Return one row for each changed check, activation on a batch, and mistake, worst first, followed by rows of kind `note`.

    Every row has `change`, `what`, `before` and `after`. Rows of checks also have the coverage, rows of activations the local
    errors, and rows of mistakes the sentence; all three identify the case.
    """
    found = sorted((row for case in changes.cases for row in _rows_of_case(case)), key=lambda row: KINDS.index(row["change"]))
    noise = [_as_row("note", f"{title(case)}: {changed_within_noise([case])}") for case in changes.cases if case.within_noise]
    environment = [_as_row("note", d.what, d.before, d.after) for d in changes.environment]
    return [*found, *noise, *environment, *(_as_row("note", note) for note in changes.notes)]


def _rows_of_case(case: CaseChange) -> Iterator[dict[str, Any]]:
    if case.kind:
        sides = {"judged_before": _judged(case.before), "judged_after": _judged(case.after)}
        yield _of(case, _as_row(case.kind, title(case), _outcome(case.before), _outcome(case.after))) | sides
    yield from (_of(case, _activation(case, change)) for change in case.activations)
    if case.is_compared:
        yield from (_of(case, row) for row in _mistakes(case, "worse", case.appeared))
        yield from (_of(case, row) for row in _mistakes(case, "better", case.vanished))


def _of(case: CaseChange, row: dict[str, Any]) -> dict[str, Any]:
    c = case.case
    return row | {"implementation": c.implementation, "golden": c.golden, "device": c.device, "dtype": c.dtype, "check": c.check}


def _activation(case: CaseChange, change: ActivationChange) -> dict[str, Any]:
    record = change.record
    row = _as_row(change.kind, f"{title(case)}: {place(record)}", _outcome(change.before), _outcome(change.after))
    errors = {"local_before": _error(change.before), "local_after": _error(change.after)}
    return row | {"activation": record.activation, "batch": record.batch, "reason": record.reason} | errors


def _mistakes(case: CaseChange, kind: Kind, found: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    sides = (NOTHING, "mistake") if kind == "worse" else ("mistake", NOTHING)
    for finding in found:
        sentence, *about = rendered(finding, case.layers)
        yield _as_row(kind, f"{title(case)}: {sentence}", *sides) | {"mistake": sentence, "about": about}


def _as_row(change: str, what: str, before: str = NOTHING, after: str = NOTHING) -> dict[str, Any]:
    return {"change": change, "what": what, "before": before, "after": after}


def _outcome(record: ActivationRecord | CheckRecord | None) -> str:
    return record.outcome if record else NOTHING


def _judged(check: CheckRecord | None) -> int | None:
    return check.judged if check else None


def _error(record: ActivationRecord | None) -> dict[str, float | None] | None:
    if record is None or record.local is None:
        return None
    return {"rms": record.local.rms, "max": record.local.max, "limit": limit_of(record)}
