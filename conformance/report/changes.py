"""What changed between two results files: `worse`, `better`, `new`, `gone`. A pure function of the records."""

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.records import ActivationRecord, Results


@dataclass(frozen=True)
class Change:
    """How one activation's verdict changed: `worse`, `better`, `new` or `gone`."""

    kind: str
    what: str
    before: str
    after: str


def changes(before: Results, after: Results) -> tuple[list[Change], list[str]]:
    """Every changed verdict, worst first, and notes on what is not compared: goldens of another version or digest."""
    old_goldens, new_goldens = (r.header.goldens if r.header else {} for r in (before, after))
    apart = [g for g in old_goldens.keys() & new_goldens.keys() if old_goldens[g] != new_goldens[g]]
    notes = [f"golden {g} is another: its verdicts are not compared" for g in sorted(apart)]
    old, new = (_verdicts(r.activations, apart) for r in (before, after))
    found = [Change("gone", case, f"{len(old[case])} activations", "") for case in old.keys() - new.keys()]
    found += [Change("new", case, "", f"{len(new[case])} activations") for case in new.keys() - old.keys()]
    for case in old.keys() & new.keys():
        found += _within(case, old[case], new[case])
    was, now = (_checks(r, apart) for r in (before, after))
    for case in was.keys() & now.keys():
        if was[case] != now[case]:
            found.append(Change("worse" if _rank(now[case]) > _rank(was[case]) else "better", case, was[case], now[case]))
    return sorted(found, key=lambda c: (("worse", "gone", "new", "better").index(c.kind), c.what)), notes


def _within(case: str, old: dict[str, str], new: dict[str, str]) -> list[Change]:
    """One case's activations."""
    found = [Change("gone", f"{case}: {a}", old[a], "") for a in old.keys() - new.keys()]
    found += [Change("new", f"{case}: {a}", "", new[a]) for a in new.keys() - old.keys()]
    for a in old.keys() & new.keys():
        if old[a] != new[a]:
            kind = "worse" if _rank(new[a]) > _rank(old[a]) else "better"
            found.append(Change(kind, f"{case}: {a}", old[a], new[a]))
    return found


def _verdicts(records: Iterable[ActivationRecord], apart: list[str]) -> dict[str, dict[str, str]]:
    """Outcomes of what was observed, by case and activation."""
    found: dict[str, dict[str, str]] = {}
    for r in records:
        if r.golden not in apart and r.outcome != "not_observed":
            case = f"{r.implementation} on {r.golden}, {r.device}, {r.dtype}"
            found.setdefault(case, {})[f"{r.activation} [{r.batch}]" if r.batch else r.activation] = r.outcome
    return found


def _checks(results: Results, apart: list[str]) -> dict[str, str]:
    """Outcomes of whole checks."""
    return {
        f"{c.implementation} on {c.golden}, {c.device}, {c.dtype}, {c.check}": c.outcome
        for c in results.checks
        if c.golden not in apart
    }


def _rank(outcome: str) -> int:
    return ("pass", "xfail", "skip", "not_observed", "xpass").index(outcome) if outcome not in ("fail", "crash", "error") else 9
