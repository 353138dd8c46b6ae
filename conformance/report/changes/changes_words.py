"""Texts about changes, shared by all output formats. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from conformance.report.axis import sigma
from conformance.report.changes.changes import GRAVE, KINDS, ActivationChange, CaseChange, Changes, Kind
from conformance.report.coverage_sentences import number, rendered
from conformance.report.run.repeated import is_same_mistake
from conformance.results.records import ActivationRecord, CheckRecord

TONES: dict[Kind, str] = {"worse": "bad", "gone": "bad", "new": "odd", "better": "good", "changed": "odd"}
NOTHING = "-"


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
        counted = ((n_checks, "check"), (n_activations, "activation"))
        if parts := [number(n, what) for n, what in counted if n]:
            yield f"{' and '.join(parts)} {kind}"
        n, what = mistakes.get(kind, (0, ""))
        if n:
            yield f"{number(n, 'mistake')} {what}"
        if failing and kind == "worse":
            yield f"{number(failing, 'new check')} {'fails' if failing == 1 else 'fail'}"


def tone(changes: Changes) -> str:
    """Return the tone of the verdict: `bad`, `good` or the empty text."""
    return "bad" if changes.exit_code else "good" if any("better" in case.kinds for case in changes.cases) else ""


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
        parts.append(f"the largest error {arrow(_worst(before), _worst(after))} of its limit")
    return ", ".join(parts)


def _sides(case: CaseChange) -> tuple[CheckRecord, CheckRecord]:
    return case.before or case.record, case.after or case.record


def _worst(check: CheckRecord) -> str:
    return f"{check.worst:.2g}" if check.worst else "none"


def why(case: CaseChange) -> str:
    """Return the first line of the reason why the case does not pass, if its outcome is worse or new.

    If its failure is now declared as a known one, return that; else an empty text.
    """
    after = case.after
    if case.is_declared:
        return f"now declared as a known failure{'; no error changed by more than noise' if case.kinds <= {'changed'} else ''}"
    is_news = after is not None and case.kind in ("worse", "new") and after.outcome != "pass"
    return (after.reason.strip().splitlines() or [""])[0] if after and is_news else ""


def mistakes(case: CaseChange, kinds: Sequence[Kind] = KINDS) -> list[tuple[str, ...]]:
    """Return the mistakes that appeared (`worse`), with details, and those that vanished (`better`), restricted to `kinds`."""
    appeared = ((f"new mistake: {said}", *about) for said, *about in (rendered(f, case.layers) for f in case.appeared))
    vanished = ((f"mistake gone: {rendered(f, case.layers)[0]}",) for f in case.vanished)
    return [*(appeared if "worse" in kinds else ()), *(vanished if "better" in kinds else ())]


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
    return [(max(of_one, key=_excess), str(len(of_one)) if len(of_one) > 1 else "") for of_one in found.values()]


def _excess(change: ActivationChange) -> float:
    """Return the larger of the excesses before and after; infinite for a failure without a limit."""
    sides = [r for r in (change.before, change.after) if r]
    return max(float("inf") if r.excess is None and r.outcome == "fail" else r.excess or 0.0 for r in sides)


def figures(change: ActivationChange) -> tuple[str, ...]:
    """Return outcome, local RMS, largest local error and limit of the RMS, each before and after, and the reason."""
    before, after = change.before, change.after
    rms = [sigma(r.local.rms if r and r.local else None) for r in (before, after)]
    largest = [sigma(r.local.max if r and r.local else None) for r in (before, after)]
    limits = [sigma(limit_of(r)) for r in (before, after) if r]
    outcomes = arrow(before.outcome if before else NOTHING, after.outcome if after else NOTHING)
    return outcomes, _arrow(*rms), _arrow(*largest), arrow(limits[0], limits[-1]), change.record.reason


def limit_of(record: ActivationRecord | None) -> float | None:
    """Return the limit of the local RMS; None if the local error has no sigma."""
    return record.limits.get("rms") if record and record.local and record.local.rms is not None else None


def _arrow(before: str, after: str) -> str:
    return NOTHING if before == after == NOTHING else f"{before} → {after}"
