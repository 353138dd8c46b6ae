"""Mistakes that one run has and another has not. A pure function of the records."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from conformance.report.findings import Finding, agrees, findings
from conformance.results.records import ActivationRecord


def struck_anew(before: Sequence[ActivationRecord], after: Sequence[ActivationRecord]) -> tuple[Finding, ...]:
    """The mistakes of `after`, each at the places alone at which `before` does not have it.

    A mistake is the same where it has the same name, or one of those that it cannot be distinguished from, and, where it is a wrong
    number, the same number within the errors. One without a name is the same where it is at the same place.
    """
    known = findings(before)
    limit = max((a.limits.get("filter", 0.0) for a in (*before, *after)), default=0.0)
    return tuple(anew for finding in findings(after) if (anew := _elsewhere(finding, known, limit)))


def _elsewhere(finding: Finding, known: Iterable[Finding], limit: float) -> Finding | None:
    """The finding at the places at which none of the known ones is the same mistake."""
    applied = {step for other in known if _is_same(finding, other, limit) for step in other.steps}
    steps = tuple(step for step in finding.steps if step not in applied)
    return replace(finding, steps=steps) if steps else None


def _is_same(one: Finding, other: Finding, limit: float) -> bool:
    a, b = one.fault, other.fault
    if a is None or b is None:
        return a is b
    if a.name == b.name:
        return agrees(a, b, limit)
    return b.name in one.others or a.name in other.others
