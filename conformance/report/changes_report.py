"""Document of the changes between two runs, and the same as rows for programs. Pure functions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.report.axis import Axis, axis_of, sigma
from conformance.report.changes import GRAVE, KINDS, ActivationChange, CaseChange, Changes, Kind
from conformance.report.coverage_sentences import number, place, rendered
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import Points
from conformance.report.findings import Finding
from conformance.report.repeated import is_same_mistake
from conformance.results.records import ActivationRecord, CheckRecord

TONES: dict[Kind, str] = {"worse": "bad", "gone": "bad", "new": "odd", "better": "good", "changed": "odd"}
NOTHING = "-"


def document(changes: Changes) -> Document:
    """Return the document: verdict, possible causes, then the cases, worst first; improvements are folded."""
    axis = axis_of(_rms(r) for case in changes.cases for c in case.activations for r in (c.before, c.after))
    better = any("better" in case.kinds for case in changes.cases)
    tone = "bad" if changes.exit_code else "good" if better else ""
    view = {
        "headline": headline(changes),
        "changes": changes,
        "worse": [
            _view(c, [k for k in KINDS if k != "better"], axis, changes) for c in changes.cases if c.kinds and not is_better(c)
        ],
        "better": [_view(c, KINDS if is_better(c) else ("better",), axis, changes) for c in changes.cases if "better" in c.kinds],
        "better_counts": ", ".join(counts(changes, ["better"])),
        "unchanged": _unchanged([case for case in changes.cases if not case.kinds]),
    }
    return Document("changes", view, "What changed between two runs", tone)


@dataclass(frozen=True)
class _CaseView:
    subject: str
    verdict: Span
    reason: str
    mistakes: list[list[str]]
    rows: list[Row]
    noise: str


def _view(case: CaseChange, kinds: Sequence[Kind], axis: Axis, changes: Changes) -> _CaseView:
    same = same_as_new_in_values(case, changes.cases) if "worse" in kinds else ""
    found = [["new mistake: " + said, *about] for f in case.appeared for said, *about in [rendered(f, case.layers)]]
    found = found if "worse" in kinds and not same else []
    found += [[f"mistake gone: {rendered(f, case.layers)[0]}"] for f in case.vanished if "better" in kinds]
    return _CaseView(
        title(case),
        Span(", ".join(filter(None, (outcome(case), coverage(case)))), TONES[KINDS[case.severity]]),
        why(case) or same,
        found,
        [_row(change, batches, axis) for kind in kinds for change, batches in by_activation(case, kind)],
        changed_within_noise([case]) if case.within_noise and "changed" in kinds else "",
    )


def _row(change: ActivationChange, batches: str, axis: Axis) -> Row:
    before, after = change.before, change.after
    fails = after is not None and after.outcome != "pass"
    points = Points(axis.at(_rms(before)), axis.at(_rms(after)), axis.at(_limit(change.record)))
    rms = [sigma(_rms(r)) for r in (before, after)]
    limits = [sigma(_limit(r)) for r in (before, after) if r]
    outcomes = arrow(before.outcome if before else NOTHING, after.outcome if after else NOTHING)
    return (
        Span(place(change.record), "bad" if fails else ""),
        change.kind,
        points,
        batches,
        outcomes,
        arrow(*rms),
        arrow(limits[0], limits[-1]),
        change.record.reason,
    )


def _unchanged(cases: Sequence[CaseChange]) -> tuple[str, list[Row]]:
    """Return a sentence on the cases without a change, and a row for each."""
    if not cases:
        return "", []
    outcomes = Counter(case.record.outcome for case in cases)
    parts = [", ".join(f"{n} {what}" for what, n in outcomes.most_common())]
    parts += [changed_within_noise(cases)] if any(case.within_noise for case in cases) else []
    rows: list[Row] = [(title(c), outcome(c), coverage(c), changed_within_noise([c]) if c.within_noise else "") for c in cases]
    return f"no change in {number(len(cases), 'check')}: {'; '.join(parts)}", rows


def headline(changes: Changes) -> str:
    """Return the verdict on the changes, followed by the number of changes of each kind."""
    if changes.is_worse:
        first = "worse"
    elif any("better" in case.kinds for case in changes.cases):
        first = "better"
    elif declared := sum(case.is_declared for case in changes.cases):
        first = f"{number(declared, 'failing check')} now declared as known, nothing better or worse"
    else:
        first = "no verdict changed" if changes.is_compared else "nothing was compared"
    of_verdict = GRAVE if changes.is_worse else {"better"} if first == "better" else set()
    leading, others = (list(counts(changes, [k for k in KINDS if (k in of_verdict) == leads])) for leads in (True, False))
    if not leading and not others and any(case.within_noise for case in changes.cases):
        others = [changed_within_noise(changes.cases)]
    parts = "; ".join(", ".join(part) for part in (leading, others) if part)
    return f"{first}: {parts}" if parts else first


def counts(changes: Changes, kinds: Sequence[Kind] = KINDS) -> Iterator[str]:
    """Yield for each kind the number of checks, activations and mistakes, omitting zeros."""
    compared = [case for case in changes.cases if case.is_compared]
    mistakes = {
        "worse": (sum(len(case.appeared) for case in compared if not same_as_new_in_values(case, changes.cases)), "appeared"),
        "better": (sum(len(case.vanished) for case in compared), "vanished"),
    }
    failing = sum(case.is_new_failure for case in changes.cases)
    for kind in kinds:
        n_checks = sum(case.kind == kind for case in changes.cases) - (failing if kind == "new" else 0)
        n_activations = sum(change.kind == kind for case in changes.cases for change in case.activations)
        if parts := [number(n, what) for n, what in ((n_checks, "check"), (n_activations, "activation")) if n]:
            yield f"{' and '.join(parts)} {kind}"
        n, what = mistakes.get(kind, (0, ""))
        if n:
            yield f"{number(n, 'mistake')} {what}"
        if failing and kind == "worse":
            yield f"{number(failing, 'new check')} {'fails' if failing == 1 else 'fail'}"


def arrow(before: str, after: str) -> str:
    """Return `before → after`, or the text alone if both are equal."""
    return before if before == after else f"{before} → {after}"


def changed_within_noise(cases: Sequence[CaseChange]) -> str:
    """Return in words how many activations differ by no more than noise, and how many do not differ."""
    changed, compared, same = map(sum, zip(*((c.within_noise, c.compared, c.same) for c in cases), strict=True))
    unchanged = f", {same} unchanged" if same else ""
    return f"{changed} of {number(compared, 'activation')} changed by no more than noise{unchanged}"


def is_better(case: CaseChange) -> bool:
    """Return whether something in the case is better, and nothing is worse, gone or new."""
    return "better" in case.kinds and case.kinds <= {"better", "changed"}


def title(case: CaseChange) -> str:
    """Return the name of the case, with both names of the implementation if they differ."""
    before, after = _sides(case)
    return str(case.case).replace(after.implementation, arrow(before.implementation, after.implementation), 1)


def outcome(case: CaseChange) -> str:
    """Return the outcomes in both runs."""
    if case.before and case.after:
        return arrow(case.before.outcome, case.after.outcome)
    return f"{case.kind}, {case.record.outcome}"


def coverage(case: CaseChange) -> str:
    """Return the numbers of judged activations in both runs, and for a search its examples and largest errors."""
    before, after = _sides(case)
    parts = []
    if after.activations:
        parts.append(f"{arrow(str(before.judged), str(after.judged))} of {after.activations} activations")
    if after.tried:
        parts.append(f"{arrow(str(before.tried), str(after.tried))} example{'' if before.tried == after.tried == 1 else 's'}")
    if before.worst or after.worst:
        worst = (f"{c.worst:.2g}" if c.worst else "none" for c in (before, after))
        parts.append(f"the largest error {arrow(*worst)} of its limit")
    return ", ".join(parts)


def _sides(case: CaseChange) -> tuple[CheckRecord, CheckRecord]:
    return case.before or case.record, case.after or case.record


def why(case: CaseChange) -> str:
    """Return the first line of the reason why the case does not pass, if its outcome is worse or new.

    If its failure is now declared as a known one, return that; else an empty text.
    """
    after = case.after
    if case.is_declared:
        return f"now declared as a known failure{'; no error changed by more than noise' if case.kinds <= {'changed'} else ''}"
    is_news = after is not None and case.kind in ("worse", "new") and after.outcome != "pass"
    return (after.reason.strip().splitlines() or [""])[0] if after and is_news else ""


def same_as_new_in_values(case: CaseChange, cases: Iterable[CaseChange]) -> str:
    """Return a sentence if all mistakes that are new in a case are new in the check `values`, too; otherwise an empty text."""
    values = replace(case.case, check="values")
    there = [f for other in cases if other is not case and other.case == values for f in other.appeared]
    if not case.appeared or not all(any(is_same_mistake(f, other, case.limit) for other in there) for f in case.appeared):
        return ""
    names = dict.fromkeys(f.fault.name if f.fault else "an error without a name" for f in case.appeared)
    return f"the same new mistake{'s' * (len(names) > 1)} as in the check `values`: {', '.join(names)}"


def by_activation(case: CaseChange, kind: Kind) -> list[tuple[ActivationChange, str]]:
    """Return, for each activation with this kind of change, that on the batch with the largest error, and the number of batches.

    The activations are in the order of computation. The number is a text, which is empty for one batch.
    """
    found: dict[str, list[ActivationChange]] = {}
    for change in case.activations:
        if change.kind == kind:
            found.setdefault(change.record.activation, []).append(change)
    return [(max(theirs, key=_excess), str(len(theirs)) if len(theirs) > 1 else "") for theirs in found.values()]


def _excess(change: ActivationChange) -> float:
    """Return the larger of the excesses before and after; infinite for a failure without a limit."""
    sides = [r for r in (change.before, change.after) if r]
    return max(float("inf") if r.excess is None and r.outcome == "fail" else r.excess or 0.0 for r in sides)


def _rms(record: ActivationRecord | None) -> float | None:
    return record.local.rms if record and record.local else None


def _limit(record: ActivationRecord | None) -> float | None:
    """Return the limit of the local RMS; None if the local error has no sigma."""
    return record.limits.get("rms") if record and _rms(record) is not None else None


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
    c = case.case
    key = {"implementation": c.implementation, "golden": c.golden, "device": c.device, "dtype": c.dtype, "check": c.check}
    if case.kind:
        sides = {f"judged_{when}": r.judged if r else None for when, r in (("before", case.before), ("after", case.after))}
        yield _as_row(case.kind, title(case), _outcome(case.before), _outcome(case.after)) | key | sides
    for change in case.activations:
        record = change.record
        row = _as_row(change.kind, f"{title(case)}: {place(record)}", _outcome(change.before), _outcome(change.after))
        errors = {"local_before": _error(change.before), "local_after": _error(change.after)}
        yield row | key | {"activation": record.activation, "batch": record.batch, "reason": record.reason} | errors
    if case.is_compared:
        yield from (row | key for row in _mistakes(case, "worse", case.appeared))
        yield from (row | key for row in _mistakes(case, "better", case.vanished))


def _mistakes(case: CaseChange, kind: Kind, found: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    sides = (NOTHING, "mistake") if kind == "worse" else ("mistake", NOTHING)
    for finding in found:
        sentence, *about = rendered(finding, case.layers)
        yield _as_row(kind, f"{title(case)}: {sentence}", *sides) | {"mistake": sentence, "about": about}


def _as_row(change: str, what: str, before: str = NOTHING, after: str = NOTHING) -> dict[str, Any]:
    return {"change": change, "what": what, "before": before, "after": after}


def _outcome(record: ActivationRecord | CheckRecord | None) -> str:
    return record.outcome if record else NOTHING


def _error(record: ActivationRecord | None) -> dict[str, float | None] | None:
    if record is None or record.local is None:
        return None
    return {"rms": record.local.rms, "max": record.local.max, "limit": _limit(record)}
