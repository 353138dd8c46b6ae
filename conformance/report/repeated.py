"""What a run's report states once: mistakes that the check `values` has found, too, and what checks or activations share."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from conformance.report.coverage_sentences import mistakes, subject
from conformance.report.findings import Finding, agrees
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord

Cases = list[CaseRecords]


def values_by_setting(cases: Iterable[CaseRecords]) -> Mapping[tuple[str, ...], CaseRecords]:
    """Return the failing case of the check `values` of each candidate in each setting."""
    return {_setting(c.check): c for c in cases if c.check.check == "values" and c.check.outcome == "fail"}


def same_as_values(case: CaseRecords, values: Mapping[tuple[str, ...], CaseRecords]) -> str:
    """Return a sentence if the check `values` has found all mistakes of another check of the same candidate, else an empty text.

    A mistake is the same if its name, its steps and, within the errors, its estimated number are; one without a name, if its steps
    are.
    """
    known = values.get(_setting(case.check))
    if known is None or known.check.check == case.check.check:
        return ""
    failed = [a for a in case.activations if a.outcome == "fail"]
    if not failed:
        return ""
    found, theirs = mistakes(case.activations), mistakes(known.activations)
    limit = max(a.limits.get("filter", 0.0) for a in failed)
    refused = {(a.activation, a.reason) for a in known.activations if _is_refused(a)}
    if any((a.activation, a.reason) not in refused for a in failed if _is_refused(a)):
        return ""
    if not all(any(is_same_mistake(f, other, limit) for other in theirs) for f in found):
        return ""
    if not found:
        return "the same violation of the contract as in the check `values`"
    names = list(dict.fromkeys(f.fault.name if f.fault else "an error without a name" for f in found))
    return f"the same mistake{'s' * (len(found) > 1)} as in the check `values`: {', '.join(names)}"


def _is_refused(a: ActivationRecord) -> bool:
    """Return whether an activation violates the contract, so that it was not judged."""
    return a.outcome == "fail" and a.local is None


def is_same_mistake(one: Finding, other: Finding, limit: float) -> bool:
    """Return whether two findings have the same steps and name and, to within `limit` standard deviations, number."""
    if one.steps != other.steps:
        return False
    if one.fault is None or other.fault is None:
        return one.fault is other.fault
    return one.fault.name == other.fault.name and agrees(one.fault, other.fault, limit)


def _setting(c: CheckRecord) -> tuple[str, ...]:
    return c.implementation, c.golden, c.device, c.dtype


def by_reason(cases: Sequence[CaseRecords]) -> dict[int, Cases]:
    """Map the id of each skipped case, or one with an error or a crash, to all such cases of its candidate with that reason.

    Reasons of errors and crashes may differ in numbers; a crash is not among them if it has failing activations besides.
    """
    alike: dict[object, Cases] = {}
    for case in cases:
        c = case.check
        if c.outcome == "error" or (c.outcome == "crash" and not any(a.outcome == "fail" for a in case.activations)):
            lines = frozenset(re.sub(r"\d+", "#", line) for line in c.reason.splitlines())
            alike.setdefault((c.outcome, c.implementation, lines), []).append(case)
        elif c.outcome == "skip":
            alike.setdefault((c.outcome, c.implementation, c.reason), []).append(case)
    return {id(case): group for group in alike.values() for case in group}


def further(first: CaseRecords, others: Sequence[CaseRecords]) -> Iterator[str]:
    """Yield a sentence about the further cases with the reason of the first one."""
    if others:
        what = "reason" if first.check.outcome == "skip" else "error"
        where = [_beside(first.check, other.check) for other in others]
        yield f"the same {what} in {len(others)} more check{'s' * (len(others) > 1)}: {'; '.join(where)}"


def _beside(first: CheckRecord, other: CheckRecord) -> str:
    """Return the name of another check of the same candidate, without the setting if that is the same."""
    return other.check if _setting(first) == _setting(other) else subject(other).removeprefix(f"{first.implementation} ")
