"""What changed between two runs: verdicts, errors in sigma and mistakes, case by case. A pure function of their records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from conformance.report.changes.environment_changes import EnvironmentChange, differing
from conformance.report.changes.scale import scale_changed, size
from conformance.report.findings import Finding, agrees, findings, layers_of
from conformance.results.case import Case
from conformance.results.merge import case_of
from conformance.results.outcomes import FAILING, ORDER, Outcome
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Results

Kind = Literal["worse", "gone", "new", "better", "changed"]
KINDS: tuple[Kind, ...] = ("worse", "gone", "new", "better", "changed")  # worst first
GRAVE = frozenset[Kind]({"worse", "gone"})


@dataclass(frozen=True)
class ActivationChange:
    """One activation on one batch; `before` or `after` is None where it is not observed.

    `changed`: it passes both times, and its sigma changed (`scale_changed`).
    """

    kind: Kind
    before: ActivationRecord | None
    after: ActivationRecord | None

    @property
    def record(self) -> ActivationRecord:
        """The later of what is known."""
        known = self.after or self.before
        assert known is not None
        return known


@dataclass(frozen=True)
class CaseChange:
    """One check of one candidate on one golden.

    Attributes:
        kind: of the check's own outcome; `new` or `gone` where the other run has no such check; None where it is as it was.
        before, after: the check's records.
        activations: those that changed, worst first, of equals in the order of computation; none where the check is new or gone.
        appeared, vanished: the mistakes that are found now and were not, and the other way round, each at those of its places
            alone at which that is so; of a check that is new, all of its mistakes appeared.
        layers: how many layers the network has.
        compared: how many activations, a batch each, were observed both times.
        moved: how many of these are another number than before, and yet no change: they moved within their noise.
    """

    kind: Kind | None
    before: CheckRecord | None
    after: CheckRecord | None
    activations: tuple[ActivationChange, ...] = ()
    appeared: tuple[Finding, ...] = ()
    vanished: tuple[Finding, ...] = ()
    layers: int = 0
    compared: int = 0
    moved: int = 0

    @property
    def record(self) -> CheckRecord:
        """The later of what is known."""
        known = self.after or self.before
        assert known is not None
        return known

    @property
    def case(self) -> Case:
        """What it is a change of, under the later name."""
        return case_of(self.record)

    @property
    def is_compared(self) -> bool:
        """Whether both runs have it."""
        return self.before is not None and self.after is not None

    @property
    def kinds(self) -> frozenset[Kind]:
        """Every kind of change in it. A new mistake, or a new check that fails, is `worse`; a mistake that vanished is `better`."""
        found: set[Kind] = {c.kind for c in self.activations}
        found |= {self.kind} if self.kind else set()
        found |= {"worse"} if self.kind == "new" and self.record.outcome in FAILING else set()
        if self.is_compared:
            found |= {"worse"} if self.appeared else set()
            found |= {"better"} if self.vanished else set()
        return frozenset(found)

    @property
    def severity(self) -> int:
        """Smaller is worse."""
        return min((KINDS.index(kind) for kind in self.kinds), default=len(KINDS))


@dataclass(frozen=True)
class Changes:
    """All of it.

    Attributes:
        names: what the two runs are called.
        cases: worst first; those in which nothing changed as well.
        environment: what may explain it.
        notes: what is not compared, or how; what is missing of either run.
        sound: whether the later run is whole, and agrees with itself.
    """

    names: tuple[str, str]
    cases: tuple[CaseChange, ...]
    environment: tuple[EnvironmentChange, ...] = ()
    notes: tuple[str, ...] = ()
    sound: bool = True

    @property
    def exit_code(self) -> int:
        """0 where something was compared, and nothing is worse or gone, nor a mistake new; and the later run is sound."""
        return int(self.is_worse or not self.is_compared or not self.sound)

    @property
    def is_worse(self) -> bool:
        """Whether a check or an activation is worse or gone, or a mistake appeared."""
        return any(case.kinds & GRAVE for case in self.cases)

    @property
    def is_compared(self) -> bool:
        """Whether both runs have a check in common."""
        return any(case.is_compared for case in self.cases)

    @property
    def of_checks(self) -> Counter[Kind]:
        """How many checks changed how."""
        return Counter(case.kind for case in self.cases if case.kind)

    @property
    def of_activations(self) -> Counter[Kind]:
        """How many activations changed how, a batch each."""
        return Counter(c.kind for case in self.cases for c in case.activations)

    @property
    def compared(self) -> int:
        """How many activations both runs observed, a batch each."""
        return sum(case.compared for case in self.cases)

    @property
    def moved(self) -> int:
        """How many of them moved within their noise."""
        return sum(case.moved for case in self.cases)


def changes(before: Results, after: Results, names: tuple[str, str] = ("before", "after")) -> Changes:
    """Every case of either run, worst first.

    A golden of another version or digest is another golden: its cases are not compared. Where each run is of one implementation
    alone, they are compared with each other, whatever they are called.
    """
    apart = _apart(before, after)
    renamed = _renamed(before, after)
    old, new = ({_key(c, renamed): c for c in r.cases if c.check.golden not in apart} for r in (before, after))
    cases = [_case(old.get(key), new.get(key)) for key in {**old, **new}]
    notes = [f"{name}: {note}" for name, r in zip(names, (before, after), strict=True) for note in r.notes]
    notes += [f"golden {g} is another: its verdicts are not compared" for g in apart]
    unknown = [name for name, r in zip(names, (before, after), strict=True) if r.cases and not r.headers]
    notes += [f"{name} has no header: which versions of the goldens it ran on is not known" for name in unknown]
    notes += ["{} was compared with {}, the only implementation of either run".format(*renamed)] if renamed else []
    return Changes(
        names, tuple(sorted(cases, key=lambda c: c.severity)), differing(before, after, renamed), tuple(notes), after.sound
    )


def _apart(before: Results, after: Results) -> list[str]:
    """Goldens that are not the same in both."""
    old, new = (_goldens(r) for r in (before, after))
    return sorted(g for g in old.keys() & new.keys() if old[g] != new[g])


def _goldens(results: Results) -> Mapping[str, tuple[int, str, str]]:
    return {name: golden.identity for header in results.headers for name, golden in header.goldens.items()}


def _renamed(before: Results, after: Results) -> tuple[str, str] | None:
    """The one implementation of each run, where these are two."""
    old, new = ({c.implementation for c in r.checks} for r in (before, after))
    return (*old, *new) if len(old) == len(new) == 1 and old != new else None  # type: ignore[return-value]  # one of each


def _key(case: CaseRecords, renamed: tuple[str, str] | None) -> tuple[str, ...]:
    c = case.check
    return ("" if renamed else c.implementation, c.golden, c.device, c.dtype, c.check)


def _case(before: CaseRecords | None, after: CaseRecords | None) -> CaseChange:
    if before is None or after is None:
        known = before or after
        assert known is not None
        if after is None:
            return CaseChange("gone", known.check, None)
        return CaseChange("new", None, known.check, (), _new_mistakes((), known.activations), layers=layers_of(known.activations))
    old, new = (_observed(c.activations) for c in (before, after))
    both = [(old[key], new[key]) for key in old if key in new]
    found_kinds = [ActivationChange(kind, a, b) for key in {**old, **new} if (kind := _kind(a := old.get(key), b := new.get(key)))]
    unchanged = [(a, b) for a, b in both if _kind(a, b) is None]
    return CaseChange(
        _by_outcome(before.check.outcome, after.check.outcome),
        before.check,
        after.check,
        tuple(sorted(found_kinds, key=lambda c: KINDS.index(c.kind))),
        _new_mistakes(before.activations, after.activations),
        _new_mistakes(after.activations, before.activations),
        layers_of((*before.activations, *after.activations)),
        len(both),
        sum((a.local, a.overall) != (b.local, b.overall) for a, b in unchanged if a.outcome == "pass"),
    )


def _observed(records: Sequence[ActivationRecord]) -> Mapping[tuple[str, str], ActivationRecord]:
    """By batch and activation; of one that was refused as well as judged, the worst."""
    found: dict[tuple[str, str], ActivationRecord] = {}
    for record in sorted(records, key=lambda r: -ORDER.index(r.outcome)):
        found[record.batch, record.activation] = record
    in_order = dict.fromkeys((r.batch, r.activation) for r in records)
    return {key: found[key] for key in in_order if found[key].outcome != "not_observed"}


def _kind(before: ActivationRecord | None, after: ActivationRecord | None) -> Kind | None:
    if before is None:
        return "new"
    if after is None:
        return "gone"
    return _by_outcome(before.outcome, after.outcome) or _by_size(before, after)


def _by_outcome(before: Outcome, after: Outcome) -> Kind | None:
    """A check that is skipped says nothing: what it said before is gone, what it says after is new."""
    if before == after:
        return None
    if "skip" in (before, after):
        return "gone" if after == "skip" else "worse" if after in FAILING else "new"
    return "worse" if ORDER.index(after) < ORDER.index(before) else "better"


def _by_size(before: ActivationRecord, after: ActivationRecord) -> Kind | None:
    """Where it passes twice, or fails twice: whether by another amount."""
    if not scale_changed(before, after):
        return None
    return "changed" if after.outcome == "pass" else "worse" if size(after) > size(before) else "better"


def _new_mistakes(before: Sequence[ActivationRecord], after: Sequence[ActivationRecord]) -> tuple[Finding, ...]:
    """The mistakes of `after`, each at the places alone at which `before` does not have it.

    A mistake is the same where it has the same name, or one of those that it cannot be distinguished from, and, where it is a wrong
    number, the same number within the errors. One without a name is the same where it is at the same place.
    """
    known = findings(before)
    limit = max((a.limits.get("filter", 0.0) for a in (*before, *after)), default=0.0)
    return tuple(new for finding in findings(after) if (new := _elsewhere(finding, known, limit)))


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
