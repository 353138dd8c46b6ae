"""Whether the records of a run agree with each other: verdicts with the numbers below them, counts with what is counted.

A results file is text, which may be edited or cut. Every statement that the report shows is derived here anew from the records
below it: an activation's verdict from its errors and limits, a check's from its activations, the footer's from the checks. Pure
functions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_record

from conformance.results.outcomes import FAILING
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Footer, Note
from conformance.results.to_records import exit_code_of, footer

_SHOWN = 3  # contradictions of one check that are listed; the others are counted


def inconsistencies(name: str, cases: Sequence[CaseRecords], end: Footer | None, planned: int) -> Iterator[Note]:
    """Yield notes where the records of a run are incomplete or disagree.

    Args:
        name: the name of the run in the notes.
        cases: the records of its checks.
        end: its footer, or None if the file ends before.
        planned: the number of checks that its header announces; 0 if that is not known.
    """
    for case in cases:
        if found := _contradiction(case):
            yield Note("contradiction", f"{name}, {case.check.case}: {found}")
    yield from _of_footer(name, cases, end, planned)


def as_counted(case: CaseRecords) -> CaseRecords:
    """Return the records of a check as they count: as an error if they contradict each other and the check does not fail."""
    found = "" if case.check.outcome in FAILING else _contradiction(case)
    return replace(case, check=replace_record(case.check, outcome="error", reason=found, exit_code=1)) if found else case


def _contradiction(case: CaseRecords) -> str:
    """Return in words what contradicts the record of a check; empty if nothing does."""
    found = list(_of_case(case))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _of_footer(name: str, cases: Sequence[CaseRecords], end: Footer | None, planned: int) -> Iterator[Note]:
    """Yield notes where the header or the footer of a run disagrees with its checks."""
    if end is None:
        after = f" after {len(cases)} of {planned} checks" if planned else ""
        yield Note("missing", f"the end of {name}: it was cut short{after}, and has no footer")
        return
    if planned > len(cases):
        yield Note("missing", f"{planned - len(cases)} of the {planned} checks of {name}")
    if (ended := sum(end.outcomes.values())) > len(cases):
        yield Note("missing", f"{name} has {len(cases)} checks, and its footer counts {ended}")
        return
    counted = footer(case.check for case in cases)
    for what in ("outcomes", "ran", "declared", "exit_code"):
        said, found = getattr(end, what), getattr(counted, what)
        if said != found:
            yield Note("contradiction", f"{name}: the footer says {what} {_listed(said)}, the checks {_listed(found)}")


def _listed(found: object) -> str:
    return ", ".join(f"{n} {outcome}" for outcome, n in sorted(found.items())) if isinstance(found, dict) else str(found)


def _of_case(case: CaseRecords) -> Iterator[str]:
    """Yield in words what contradicts the record of a check: its own fields, then its activations."""
    check, counted = case.check, dict(Counter(a.outcome for a in case.activations))
    if check.exit_code != exit_code_of(check):
        yield f"its outcome is {check.outcome}, and its exit code {check.exit_code}"
    if check.outcome == "pass":
        yield from _of_pass(check)
    if check.outcome in ("pass", "skip") and (failed := sum(counted.get(outcome, 0) for outcome in FAILING)):
        yield f"its outcome is {check.outcome}, and {failed} of its {len(case.activations)} activations fail"
    if check.verdicts and check.verdicts != counted:
        yield f"it counts {_listed(check.verdicts)} of activations, and there are {_listed(counted) or 'none'}"
    unexposed = {a.activation for a in case.activations if a.outcome == "not_observed"}
    if check.verdicts and check.judged > (most := len({a.activation for a in case.activations} - unexposed)):
        yield f"it says that {check.judged} activations are judged, and {most} are exposed"
    for a in case.activations:
        if (a.implementation, a.golden, a.device, a.dtype) != (check.implementation, check.golden, check.device, check.dtype):
            yield f"before its record stands {a.activation} of {a.implementation} on {a.golden}, {a.device}, {a.dtype}"
        elif a.outcome == "pass" and (why := _exceeds(a)):
            yield f"{a.activation}{f' [{a.batch}]' if a.batch else ''} is recorded as right, and {why}"


def _of_pass(check: CheckRecord) -> Iterator[str]:
    """Yield in words what a check that passes cannot have."""
    if not check.executed:
        yield "it passes, and was not run"
    if check.counterexample is not None:
        yield "it passes, and has a counterexample"
    if check.worst is not None and check.worst > 1.0:
        yield f"it passes, and an error is {check.worst:.3g} times its limit"


def _exceeds(a: ActivationRecord) -> str:
    """Return in words why an activation that is recorded as right is not; empty if it is."""
    if a.local is None:
        return "has no error"
    if a.local.rms is None or a.local.max is None:
        return f"differs by {a.local.max_abs:.3g}, where nothing may differ" if a.local.max_abs else ""
    for what, error in (("rms", a.local.rms), ("max", a.local.max)):
        if error > (limit := a.limits.get(what, 0.0)):
            return f"its {what} is {error:.3g} σ, beyond the limit of {limit:.3g}"
    return "" if a.excess is not None and a.excess <= 1.0 else "its error is beyond its limit"
