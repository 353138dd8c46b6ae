"""What a run's report states once: mistakes that the check `values` detects, too, and reasons that several checks share."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from conformance.report.findings import filter_limit, is_same_mistake, mistakes
from conformance.results.records import CaseRecords, CheckRecord


def setting(c: CheckRecord) -> tuple[str, ...]:
    """Return the candidate of a check and what it ran on: golden, device and dtype."""
    return c.implementation, c.golden, c.device, c.dtype


def values_by_setting(cases: Iterable[CaseRecords]) -> Mapping[tuple[str, ...], CaseRecords]:
    """Return the failing case of the check `values` of each candidate in each setting."""
    return {setting(c.check): c for c in cases if c.check.check == "values" and c.check.outcome == "fail"}


def same_as_values(case: CaseRecords, values: Mapping[tuple[str, ...], CaseRecords]) -> str:
    """Return a sentence if the check `values` has all mistakes of another check of the same candidate at the same steps, or ''."""
    of_values = values.get(setting(case.check))
    if of_values is None or of_values.check.check == case.check.check:
        return ""
    failed = [a for a in case.activations if a.outcome == "fail"]
    if not failed:
        return ""
    if _refused(case) - _refused(of_values):
        return ""
    every, theirs, limit = mistakes(case.activations), mistakes(of_values.activations), filter_limit(failed)
    if not all(any(f.steps == other.steps and is_same_mistake(f, other, limit) for other in theirs) for f in every):
        return ""
    if not every:
        return "the same violation of the contract as in the check `values`"
    names = list(dict.fromkeys(f.name or "an error without a name" for f in every))
    return f"the same mistake{'s' * (len(every) > 1)} as in the check `values`: {', '.join(names)}"


def _refused(case: CaseRecords) -> set[tuple[str, str]]:
    """Return the activations that violate the contract, so that they were not judged, with the reasons."""
    return {(a.activation, a.reason) for a in case.activations if a.outcome == "fail" and a.local is None}


def by_reason(cases: Sequence[CaseRecords]) -> dict[int, list[CaseRecords]]:
    """Map the id of each skipped case, or one with an error or a crash, to all such cases of its candidate with that reason.

    Reasons of errors and crashes may differ in numbers; a crash is not among them if it has failing activations besides.
    """
    alike: dict[object, list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        if c.outcome == "error" or (c.outcome == "crash" and not any(a.outcome == "fail" for a in case.activations)):
            lines = frozenset(re.sub(r"\d+", "#", line) for line in c.reason.splitlines())
            alike.setdefault((c.outcome, c.implementation, lines), []).append(case)
        elif c.outcome == "skip":
            alike.setdefault((c.outcome, c.implementation, c.reason), []).append(case)
    return {id(case): group for group in alike.values() for case in group}


def further(first: CaseRecords, others: Sequence[CaseRecords]) -> Iterator[str]:
    """Yield a sentence about the further cases with the reason of the first one, without the setting where that is the same."""
    if others:
        candidate, home = f"{first.check.implementation} ", setting(first.check)
        where = [c.check.check if setting(c.check) == home else str(c.check.case).removeprefix(candidate) for c in others]
        what = "reason" if first.check.outcome == "skip" else "error"
        yield f"the same {what} in {len(others)} more check{'s' * (len(others) > 1)}: {'; '.join(where)}"
