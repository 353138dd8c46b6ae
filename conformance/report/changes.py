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
    found = [Change("gone", key, old[key], "") for key in old.keys() - new.keys()]
    found += [Change("new", key, "", new[key]) for key in new.keys() - old.keys()]
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            found.append(Change("worse" if _rank(new[key]) > _rank(old[key]) else "better", key, old[key], new[key]))
    return sorted(found, key=lambda c: (("worse", "gone", "new", "better").index(c.kind), c.what)), notes


def _verdicts(records: Iterable[ActivationRecord], apart: list[str]) -> dict[str, str]:
    return {
        f"{r.implementation} on {r.golden}, {r.device}, {r.dtype}: {r.activation}{f' [{r.batch}]' if r.batch else ''}": r.outcome
        for r in records
        if r.golden not in apart
    }


def _rank(outcome: str) -> int:
    return ("pass", "xfail", "skip", "not_observed", "xpass").index(outcome) if outcome not in ("fail", "crash", "error") else 9
