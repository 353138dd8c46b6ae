"""Document of the changes between two runs. Pure functions."""

from collections import Counter
from collections.abc import Iterator, Sequence

from conformance.report.axis import Axis, axis_of
from conformance.report.changes.changes import KINDS, CaseChange, Changes, Kind
from conformance.report.changes.changes_words import (
    TONES,
    ChangeRow,
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
from conformance.report.coverage_sentences import number
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
from conformance.results.records import ActivationRecord

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
    yield from tabled(columns, [(kind, [_row(row, axis) for row in by_activation(case, kind)]) for kind in kinds])
    if case.within_noise and "changed" in kinds:
        yield Paragraph(changed_within_noise(case))


def _row(row: ChangeRow, axis: Axis) -> Row:
    change = row.worst
    before, after = (axis.at(_rms(record)) for record in (change.before, change.after))
    points = Points((before, after), axis.at(limit_of(change.record)), joined=True)
    fails = change.after is not None and change.after.outcome != "pass"
    return Row((row.name, points, row.batches, *figures(change)), "bad" if fails else "")


def _rms(record: ActivationRecord | None) -> float | None:
    return record.local.rms if record and record.local else None


def _unchanged(changes: Changes) -> Iterator[Block]:
    cases = [case for case in changes.cases if not case.kinds]
    if cases:
        outcomes = Counter(case.record.outcome for case in cases)
        parts = [", ".join(f"{n} {what}" for what, n in outcomes.most_common())]
        if any(case.within_noise for case in cases):
            parts.append(changed_within_noise(Changes(changes.names, tuple(cases))))
        yield Heading(f"no change in {number(len(cases), 'check')}", "; ".join(parts), level=2)
        columns = (Column("check"), *(Column(head, is_text=True) for head in ("outcome", "judged", "within noise")))
        rows = [(title(c), outcome(c), coverage(c), changed_within_noise(c) if c.within_noise else "") for c in cases]
        yield Abridged((Folded(number(len(cases), "check"), tuple(tabled(columns, [("", rows)]))),))
