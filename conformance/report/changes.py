"""Changes between two runs: verdicts, errors in sigma and mistakes, case by case, and what may explain them in the environment.

Pure functions of the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from msgspec.structs import replace as replace_record

from conformance.report.findings import Finding, agrees, findings, layers_of
from conformance.report.scale import scale_changed, size
from conformance.results.case import Case
from conformance.results.outcomes import FAILING, ORDER, Outcome
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Header, ImplementationRecord, Results

Kind = Literal["worse", "gone", "new", "better", "changed"]
KINDS: tuple[Kind, ...] = ("worse", "gone", "new", "better", "changed")  # worst first
GRAVE = frozenset[Kind]({"worse", "gone"})
_VERSIONS = ("suite", "python", "torch", "transformers", "numpy", "onnxruntime")
_CONDITIONS = ("platform", "processor", "gpu", "threads", "false_alarm", "seed", "examples")
_OfCandidate = frozenset[ImplementationRecord]


@dataclass(frozen=True)
class ActivationChange:
    """A change of one activation on one batch; a record is None if the run has not observed it.

    `changed` means that the activation passes in both runs and the scale of its error differs (`scale_changed`), or that its
    failure is now declared as a known one.
    """

    kind: Kind
    before: ActivationRecord | None
    after: ActivationRecord | None

    @property
    def record(self) -> ActivationRecord:
        """The later record, or the earlier one if the later run has none."""
        known = self.after or self.before
        assert known is not None
        return known


@dataclass(frozen=True)
class CaseChange:
    """The changes of one case, that is one check of one candidate on one golden.

    Attributes:
        kind: change of the check's outcome; `new` or `gone` if only one run has the check, None if the outcome is the same.
        before, after: the check's record in the earlier and in the later run; None if there is none.
        activations: the activations that changed, worst first, ties in the order of computation; empty if the check is new or gone.
        appeared, vanished: the mistakes that only the later or only the earlier run has, each restricted to the steps where it is
            new or gone; for a new check all its mistakes.
        layers: number of layers of the network.
        compared: number of pairs of activation and batch that both runs observed.
        within_noise: number of passing pairs whose errors differ without a significant change.
        same: number of pairs with the same outcome and errors.
        limit: threshold of the matched filters' |z|, for comparing estimated numbers.
    """

    kind: Kind | None
    before: CheckRecord | None
    after: CheckRecord | None
    activations: tuple[ActivationChange, ...] = ()
    appeared: tuple[Finding, ...] = ()
    vanished: tuple[Finding, ...] = ()
    layers: int = 0
    compared: int = 0
    within_noise: int = 0
    same: int = 0
    limit: float = 0.0

    @property
    def record(self) -> CheckRecord:
        """The later record, or the earlier one if the later run has none."""
        known = self.after or self.before
        assert known is not None
        return known

    @property
    def case(self) -> Case:
        """The case, with the name of the candidate in the later run."""
        return self.record.case

    @property
    def is_new_failure(self) -> bool:
        """Whether only the later run has the check, and it fails."""
        return self.kind == "new" and self.record.outcome in FAILING

    @property
    def is_compared(self) -> bool:
        """Whether both runs have the check."""
        return self.before is not None and self.after is not None

    @property
    def is_declared(self) -> bool:
        """Whether the check failed, and its failure is now declared as a known one."""
        return self.before is not None and self.after is not None and _is_declared(self.before.outcome, self.after.outcome)

    @property
    def kinds(self) -> frozenset[Kind]:
        """All kinds of change in the case; a new mistake or a new failing check is `worse`, a vanished mistake is `better`."""
        found: set[Kind] = {c.kind for c in self.activations}
        found |= {self.kind} if self.kind else set()
        found |= {"worse"} if self.is_new_failure else set()
        if self.is_compared:
            found |= {"worse"} if self.appeared else set()
            found |= {"better"} if self.vanished else set()
        return frozenset(found)

    @property
    def severity(self) -> int:
        """Index of the worst kind of change in `KINDS`; smaller is worse."""
        return min((KINDS.index(kind) for kind in self.kinds), default=len(KINDS))


@dataclass(frozen=True)
class EnvironmentChange:
    """A property of the run's environment that differs between two runs."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Changes:
    """All changes between two runs.

    Attributes:
        names: names of the earlier and the later run.
        cases: all cases, worst first, including those without a change.
        environment: differences in software, machine and settings, which may explain changes.
        notes: remarks on the comparison, and the notes of both runs.
        sound: whether the later run is complete and free of contradictions.
    """

    names: tuple[str, str]
    cases: tuple[CaseChange, ...]
    environment: tuple[EnvironmentChange, ...] = ()
    notes: tuple[str, ...] = ()
    sound: bool = True

    @property
    def exit_code(self) -> int:
        """The exit code: 0 if the runs share a check, the later run is sound, and nothing is worse or gone; else 1.

        A mistake that appeared counts as worse.
        """
        return int(self.is_worse or not self.is_compared or not self.sound)

    @property
    def is_worse(self) -> bool:
        """Whether any check or activation is worse or gone, or any mistake appeared."""
        return any(case.kinds & GRAVE for case in self.cases)

    @property
    def is_compared(self) -> bool:
        """Whether the runs have a check in common."""
        return any(case.is_compared for case in self.cases)


def changes(before: Results, after: Results, names: tuple[str, str] = ("before", "after")) -> Changes:
    """Compare all cases of two runs.

    Goldens that differ in version or digest are different goldens, and their cases are not compared. If each run has only one
    implementation, these two are compared with each other, whatever their names. `names` are those of the runs in the report.
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
        names, tuple(sorted(cases, key=lambda c: c.severity)), _differing(before, after, renamed), tuple(notes), after.sound
    )


def _apart(before: Results, after: Results) -> list[str]:
    """Return the names of the goldens that both runs have, but with different contents."""
    old, new = (_goldens(r) for r in (before, after))
    return sorted(g for g in old.keys() & new.keys() if old[g] != new[g])


def _goldens(results: Results) -> Mapping[str, tuple[int, str, str]]:
    return {name: golden.identity for header in results.headers for name, golden in header.goldens.items()}


def _renamed(before: Results, after: Results) -> tuple[str, str] | None:
    """Return the only implementation of each run if their names differ; None otherwise."""
    old, new = ({c.implementation for c in r.checks} for r in (before, after))
    return (*old, *new) if len(old) == len(new) == 1 and old != new else None  # type: ignore[return-value]  # both sets have one element


def _key(case: CaseRecords, renamed: tuple[str, str] | None) -> tuple[str, ...]:
    c = case.check
    return ("" if renamed else c.implementation, c.golden, c.device, c.dtype, c.check)


def _case(before: CaseRecords | None, after: CaseRecords | None) -> CaseChange:
    if before is None or after is None:
        known = before or after
        assert known is not None
        if after is None:
            return CaseChange("gone", known.check, None)
        appeared, layers = _new_mistakes((), known.activations), layers_of(known.activations)
        return CaseChange("new", None, known.check, (), appeared, layers=layers, limit=_filter_limit(known.activations))
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
        sum(not _is_equal(a, b) for a, b in unchanged if a.outcome == "pass"),
        sum(_is_equal(a, b) for a, b in unchanged),
        _filter_limit((*before.activations, *after.activations)),
    )


def _is_equal(a: ActivationRecord, b: ActivationRecord) -> bool:
    return (a.local, a.global_error) == (b.local, b.global_error)


def _filter_limit(records: Iterable[ActivationRecord]) -> float:
    """Return the threshold of the matched filters' |z|; 0 if nothing was filtered."""
    return max((a.limits.get("filter", 0.0) for a in records), default=0.0)


def _observed(records: Sequence[ActivationRecord]) -> Mapping[tuple[str, str], ActivationRecord]:
    """Return the observed records by batch and activation; of several records of one activation, the worst."""
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
    if _is_declared(before.outcome, after.outcome):
        return _by_size(replace_record(before, outcome=after.outcome), after) or "changed"
    return _by_outcome(before.outcome, after.outcome) or _by_size(before, after)


def _is_declared(before: Outcome, after: Outcome) -> bool:
    """Return whether a failure is now declared as a known one, which changes nothing in the candidate."""
    return (before, after) == ("fail", "xfail")


def _by_outcome(before: Outcome, after: Outcome) -> Kind | None:
    """Return the change of an outcome; a skipped check has no result, so that the other run's result is gone or new."""
    if before == after:
        return None
    if _is_declared(before, after):
        return "changed"
    if "skip" in (before, after):
        return "gone" if after == "skip" else "worse" if after in FAILING else "new"
    return "worse" if ORDER.index(after) < ORDER.index(before) else "better"


def _by_size(before: ActivationRecord, after: ActivationRecord) -> Kind | None:
    """Return the change in the size of the error if the outcome is the same in both runs; None if not significant."""
    if not scale_changed(before, after):
        return None
    return "changed" if after.outcome == "pass" else "worse" if size(after) > size(before) else "better"


def _new_mistakes(before: Sequence[ActivationRecord], after: Sequence[ActivationRecord]) -> tuple[Finding, ...]:
    """Return the mistakes of `after`, each restricted to the steps at which `before` does not have it.

    Two mistakes are the same if they have the same name and, for a wrong number, the same value within the errors, or if one of
    them cannot be distinguished from the other. Unidentified mistakes are the same if they are at the same step. Known failures
    count: declaring a failure as known removes no mistake.
    """
    before, after = ([replace_record(a, outcome="fail") if a.outcome == "xfail" else a for a in of] for of in (before, after))
    known = findings(before)
    limit = _filter_limit((*before, *after))
    return tuple(new for finding in findings(after) if (new := _elsewhere(finding, known, limit)))


def _elsewhere(finding: Finding, known: Iterable[Finding], limit: float) -> Finding | None:
    """Return the finding restricted to steps at which no known finding is the same mistake; None if there are none."""
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


def _differing(before: Results, after: Results, renamed: tuple[str, str] | None) -> tuple[EnvironmentChange, ...]:
    """Return the differing versions of candidates, then all other differences in the headers.

    A property that one of the runs does not record is not reported. `renamed` are two candidates that are compared with each other.
    """
    if not (before.headers and after.headers):
        return ()
    rendered = ((what, *(_as_text(_said(r.headers, what)) for r in (before, after))) for what in (*_VERSIONS, *_CONDITIONS))
    return (*_candidates(before, after, renamed), *(EnvironmentChange(*of) for of in rendered if of[1] != of[2] and all(of)))


def _said(headers: Iterable[Header], what: str) -> set[object]:
    return {value for header in headers if (value := getattr(header, what)) != ""}


def _as_text(values: Iterable[object]) -> str:
    return ", ".join(sorted("none" if value is None else str(value) for value in values))


def _candidates(before: Results, after: Results, renamed: tuple[str, str] | None) -> Iterable[EnvironmentChange]:
    """Return the candidates that both runs judged in different versions; candidates with the same difference share an entry."""
    old, new = (_versions(r) for r in (before, after))
    pairs = [renamed] if renamed else [(name, name) for name in new]
    found: dict[tuple[str, str], list[str]] = {}
    for was, is_ in pairs:
        if was in old and is_ in new and old[was] != new[is_]:
            found.setdefault(_distinguished(old[was], new[is_]), []).append(is_)
    return [EnvironmentChange(", ".join(names), *versions) for versions, names in found.items()]


def _versions(results: Results) -> Mapping[str, _OfCandidate]:
    """Return the versions of each judged candidate; there may be several if the results were merged from several runs."""
    judged = {check.implementation for check in results.checks}
    found: dict[str, set[ImplementationRecord]] = {}
    for header in results.headers:
        for name in header.implementations.keys() & judged:
            found.setdefault(name, set()).add(header.implementations[name])
    return {name: frozenset(found[name]) for name in sorted(found)}


def _distinguished(before: _OfCandidate, after: _OfCandidate) -> tuple[str, str]:
    """Return texts that distinguish two sets of versions: distribution and version or, if these agree, the origin."""
    versions = tuple(_as_text({f"{r.distribution} {r.version}" for r in of}) for of in (before, after))
    old, new = versions if versions[0] != versions[1] else tuple(_as_text({r.origin for r in of}) for of in (before, after))
    return old, new
