"""What changed between two runs, in words: a document for a terminal or a pull request, and rows for a program. Pure functions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from conformance.records import ActivationRecord, CheckRecord
from conformance.report.changes import KINDS, ActivationChange, CaseChange, Changes, Kind
from conformance.report.document import Block, Document, Folded, Heading, Items, Paragraph, Verdict, tabled
from conformance.report.findings import Finding
from conformance.report.words import place, told

TONES: dict[Kind, str] = {"worse": "bad", "gone": "bad", "new": "odd", "better": "good", "changed": "odd"}
NOTHING = "-"


def headline(changes: Changes) -> str:
    """What it comes to, then how much of each kind."""
    if changes.exit_code:
        first = "worse"
    elif any("better" in case.kinds for case in changes.cases):
        first = "better"
    else:
        first = "no verdict changed" if any(case.is_compared for case in changes.cases) else "nothing was compared"
    return f"{first}: {counts}" if (counts := ", ".join(_counts(changes))) else first


def _counts(changes: Changes) -> Iterator[str]:
    for kind in KINDS:
        counted = [("check", changes.of_checks[kind]), ("activation", changes.of_activations[kind])]
        parts = [number(n, what) for what, n in counted if n]
        if parts:
            yield f"{' and '.join(parts)} {kind}"
        compared = [case for case in changes.cases if case.is_compared]
        appeared, vanished = sum(len(c.appeared) for c in compared), sum(len(c.vanished) for c in compared)
        if kind == "worse" and appeared:
            yield f"{number(appeared, 'mistake')} appeared"
        if kind == "better" and vanished:
            yield f"{number(vanished, 'mistake')} vanished"
    if changes.moved:
        yield f"{changes.moved} of {number(changes.compared, 'activation')} moved within their noise"


def number(n: int, what: str) -> str:
    """`1 check`, `2 checks`."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def arrow(before: str, after: str) -> str:
    """From one to the other, or the one that it stays."""
    return before if before == after else f"{before} → {after}"


def title(case: CaseChange) -> str:
    """Who was checked, on what; under both names where it was renamed."""
    check, names = case.record, arrow(*(c.implementation for c in (case.before or case.record, case.after or case.record)))
    return str(case.case).replace(check.implementation, names, 1)


def outcome(case: CaseChange) -> str:
    """The outcome then and now."""
    if case.before and case.after:
        return arrow(case.before.outcome, case.after.outcome)
    return f"{case.kind}, {case.record.outcome}"


def coverage(case: CaseChange) -> str:
    """How many activations were judged, then and now; of a search how far it went."""
    records = (case.before or case.record, case.after or case.record)
    parts = [f"{arrow(*(str(c.judged) for c in records))} of {case.record.activations} activations"] if case.record.activations else []
    parts += [f"{arrow(*(str(c.tried) for c in records))} examples"] if any(c.tried for c in records) else []
    if any(c.worst for c in records):
        parts.append(f"the largest error {arrow(*map(_worst, records))} of its limit")
    return ", ".join(parts)


def _worst(check: CheckRecord) -> str:
    return f"{check.worst:.2g}" if check.worst else "none"


def why(case: CaseChange) -> str:
    """The first line of why it does not pass, where that is news."""
    after = case.after
    is_news = after is not None and case.kind in ("worse", "new") and after.outcome != "pass"
    return (after.reason.strip().splitlines() or [""])[0] if after and is_news else ""


def moved(case: CaseChange) -> str:
    """How many activations are other numbers, and no change."""
    return f"{case.moved} of {number(case.compared, 'activation')} moved within their noise" if case.moved else ""


def figures(change: ActivationChange) -> tuple[str, ...]:
    """Outcome, local RMS, largest local error and the limit of the RMS, each then and now, and what else is said."""
    before, after = change.before, change.after
    outcomes = tuple(r.outcome if r else NOTHING for r in (before, after))
    rms, largest = (tuple(_sigma(getattr(r.local, what) if r and r.local else None) for r in (before, after)) for what in ("rms", "max"))
    limit = tuple(_sigma(limit_of(r)) for r in (before, after) if r)
    return arrow(*outcomes), _arrow(*rms), _arrow(*largest), arrow(limit[0], limit[-1]), change.record.reason


def limit_of(record: ActivationRecord | None) -> float | None:
    """The largest that the local RMS may be; None where there is no sigma."""
    return record.limits.get("rms") if record and record.local and record.local.rms is not None else None


def _arrow(before: str, after: str) -> str:
    return NOTHING if before == after == NOTHING else f"{before} → {after}"


def _sigma(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g} σ"


def document(changes: Changes) -> Document:
    """The verdict, what may explain it, then the cases, worst first; what is better can be left unread."""
    return tuple(chain(_beside(changes), _cases(changes), _better(changes), _unchanged(changes)))


def _beside(changes: Changes) -> Iterator[Block]:
    tone = "bad" if changes.exit_code else "good" if any("better" in c.kinds for c in changes.cases) else ""
    yield Verdict(headline(changes), tone)
    yield Paragraph(f"from {changes.names[0]} to {changes.names[1]}")
    if changes.environment:
        differing = "; ".join(f"{d.what} {d.before} → {d.after}" for d in changes.environment)
        yield Paragraph(f"what may explain it: {differing}")
    yield from (Paragraph(note, "odd") for note in changes.notes)


def _cases(changes: Changes) -> Iterator[Block]:
    for case in changes.cases:
        kinds = case.kinds - {"better"}
        if kinds:
            yield _heading(case)
            yield from _told_case(case, [kind for kind in KINDS if kind in kinds], case.appeared, "new mistake")


def _better(changes: Changes) -> Iterator[Block]:
    cases = [case for case in changes.cases if "better" in case.kinds]
    if cases:
        blocks = (block for c in cases for block in (_heading(c), *_told_case(c, ["better"], c.vanished, "mistake gone")))
        yield Folded(f"better: {number(len(cases), 'check')}", tuple(blocks))


def _heading(case: CaseChange) -> Heading:
    tone = TONES[KINDS[case.gravity]] if case.kinds else ""
    return Heading(title(case), ", ".join(part for part in (outcome(case), coverage(case)) if part), tone)


def _told_case(case: CaseChange, kinds: Sequence[Kind], mistakes: Sequence[Finding], what: str) -> Iterator[Block]:
    if "better" not in kinds and (reason := why(case)):
        yield Paragraph(reason)
    if mistakes:
        yield Items(tuple(_mistake(finding, case, what) for finding in mistakes))
    groups = [(kind, [(place(c.record), *figures(c)) for c in case.activations if c.kind == kind]) for kind in kinds]
    yield from tabled(("activation", "outcome", "local rms", "max", "limit", "what it says"), groups)
    if case.moved and (what == "new mistake" or case.kinds == {"better"}):
        yield Paragraph(moved(case))


def _mistake(finding: Finding, case: CaseChange, what: str) -> tuple[str, ...]:
    sentence, *about = told(finding, case.layers)
    return f"{what}: {sentence}", *about


def _unchanged(changes: Changes) -> Iterator[Block]:
    cases = [case for case in changes.cases if not case.kinds]
    if cases:
        outcomes = Counter(case.record.outcome for case in cases)
        counts = ", ".join(f"{n} {what}" for what, n in outcomes.most_common())
        figures = sum(case.moved for case in cases), sum(case.compared for case in cases)
        beside = f"; {figures[0]} of {number(figures[1], 'activation')} moved within their noise" if figures[0] else ""
        yield Heading(f"no change in {number(len(cases), 'check')}", f"{counts}{beside}")


def rows(changes: Changes) -> list[dict[str, Any]]:
    """For a program, a row each: activations and checks, mistakes, and what stands beside (`note`), worst first.

    `change`, `what`, `before` and `after` are there always; of an activation its errors too, of a check its coverage.
    """
    found = sorted((row for case in changes.cases for row in _rows(case)), key=lambda row: KINDS.index(row["change"]))
    environment = [_row("note", d.what, d.before, d.after) for d in changes.environment]
    return [*found, *environment, *(_row("note", note) for note in changes.notes)]


def _rows(case: CaseChange) -> Iterator[dict[str, Any]]:
    c = case.case
    subject = {"implementation": c.implementation, "golden": c.golden, "device": c.device, "dtype": c.dtype, "check": c.check}
    if case.kind:
        seen = {"judged": _judged(case.before), "moved": case.moved, "compared": case.compared}
        outcomes = (r.outcome if r else NOTHING for r in (case.before, case.after))
        seen["judged_now"] = _judged(case.after)
        yield _row(case.kind, title(case), *outcomes) | subject | seen
    for change in case.activations:
        before, after = change.before, change.after
        outcomes = (r.outcome if r else NOTHING for r in (before, after))
        errors = {"local_before": _error(before), "local_after": _error(after), "reason": change.record.reason}
        where = {"activation": change.record.activation, "batch": change.record.batch}
        yield _row(change.kind, f"{title(case)}: {place(change.record)}", *outcomes) | subject | where | errors
    if case.is_compared:
        yield from _mistake_rows(case, "worse", case.appeared, (NOTHING, "mistake"), subject)
        yield from _mistake_rows(case, "better", case.vanished, ("mistake", NOTHING), subject)


def _mistake_rows(
    case: CaseChange, kind: Kind, mistakes: Iterable[Finding], sides: tuple[str, str], subject: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for finding in mistakes:
        sentence, *about = told(finding, case.layers)
        yield _row(kind, f"{title(case)}: {sentence}", *sides) | subject | {"mistake": sentence, "about": about}


def _row(change: str, what: str, before: str = NOTHING, after: str = NOTHING) -> dict[str, Any]:
    return {"change": change, "what": what, "before": before, "after": after}


def _judged(check: CheckRecord | None) -> int | None:
    return check.judged if check else None


def _error(record: ActivationRecord | None) -> dict[str, float | None] | None:
    if record is None or record.local is None:
        return None
    return {"rms": record.local.rms, "max": record.local.max, "limit": limit_of(record)}
