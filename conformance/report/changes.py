"""Changes from an earlier run, the baseline, to a later one: outcomes, mistakes, and what in the environment may explain them.

Pure functions of the records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Literal

from msgspec.structs import replace as replace_record

from conformance.report.coverage_sentences import number
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import sigma
from conformance.report.finding import Finding, where
from conformance.report.findings import filter_limit, findings, is_same_mistake, layers_of
from conformance.results.outcomes import FAILING, ORDER, Outcome
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, Results

Kind = Literal["worse", "gone", "new", "known", "better"]
KINDS: tuple[Kind, ...] = ("worse", "gone", "new", "known", "better")  # worst first
GRAVE = frozenset[Kind]({"worse", "gone"})
_TONES: Mapping[Kind, str] = {"worse": "bad", "gone": "bad", "new": "odd", "known": "odd", "better": "good"}
_ENVIRONMENT = (
    "suite", "python", "torch", "transformers", "numpy", "onnxruntime", "platform", "processor", "gpu", "threads", "false_alarm",
    "seed", "examples",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A row of the table: a check, or the activations of it that changed alike.

    Attributes:
        kind: `known` if a failure is now declared as a known one; None for a check whose outcome is the same.
        what: name of the case, or the places of the activations.
        before, after: outcome, coverage and median error of the check in either run; empty if the run has none.
        reason: first line of the reason in the later run.
        activations: number of activations; 0 for a check.
    """

    kind: Kind | None
    what: str
    before: str = ""
    after: str = ""
    reason: str = ""
    activations: int = 0


@dataclass(frozen=True)
class CaseChange:
    """The changes of a case: a row for its check, then one for each kind of change of its activations, worst first.

    `appeared` and `vanished` are the mistakes that only the later or only the earlier run has, each restricted to the steps where
    it is new or gone. `is_compared` is whether both runs have the check.
    """

    rows: tuple[Change, ...]
    appeared: tuple[Finding, ...] = ()
    vanished: tuple[Finding, ...] = ()
    is_compared: bool = False

    @property
    def kinds(self) -> set[Kind]:
        """All kinds of change in the case; a new mistake is `worse`, one that is gone is `better`."""
        kinds = [*(row.kind for row in self.rows), "worse" if self.appeared else None, "better" if self.vanished else None]
        return {kind for kind in KINDS if kind in kinds}


@dataclass(frozen=True)
class Changes:
    """All changes between two runs.

    Attributes:
        names: names of the earlier and the later run.
        cases: all cases, worst first, including those without a change.
        environment: differences in software, machine and settings, which may explain changes: the property, before and after.
        notes: remarks on the comparison, and the notes of both runs.
        sound: whether the later run is complete and free of contradictions.
    """

    names: tuple[str, str]
    cases: tuple[CaseChange, ...]
    environment: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    sound: bool

    @property
    def kinds(self) -> set[Kind]:
        """All kinds of change."""
        return set[Kind]().union(*(case.kinds for case in self.cases))

    @property
    def is_compared(self) -> bool:
        """Whether the runs have a check in common."""
        return any(case.is_compared for case in self.cases)

    @property
    def exit_code(self) -> int:
        """The exit code: 0 if the runs share a check, the later run is sound, and nothing is worse or gone; else 1."""
        return int(bool(self.kinds & GRAVE) or not self.is_compared or not self.sound)

    @property
    def mistakes(self) -> dict[tuple[Kind, tuple[str, ...]], list[str]]:
        """The mistakes in words that are new (`worse`) or gone (`better`), each with all checks that it concerns."""
        checks: dict[tuple[Kind, tuple[str, ...]], list[str]] = {}
        for case in self.cases:
            for f in case.appeared:
                checks.setdefault(("worse", tuple(f.lines)), []).append(case.rows[0].what)
            for f in case.vanished:
                checks.setdefault(("better", (f.sentence,)), []).append(case.rows[0].what)
        return checks

    @property
    def headline(self) -> str:
        """The verdict on the changes, followed by the numbers of checks, activations and mistakes that changed."""
        worst = next((kind for kind in KINDS if kind in self.kinds), None)
        if worst is None:
            return "no verdict changed" if self.is_compared else "nothing was compared"
        rows, parts = [row for case in self.cases for row in case.rows], list[str]()
        for kind in KINDS:
            checks, activations = (
                sum(r.kind == kind and not r.activations for r in rows),
                sum(r.activations for r in rows if r.kind == kind),
            )
            counts = [number(n, what) for n, what in ((checks, "check"), (activations, "activation")) if n]
            parts += [f"{' and '.join(counts)} {kind}"] if counts else []
            mistakes = sum(of == kind for of, _ in self.mistakes)
            parts += [f"{number(mistakes, 'mistake')} {'new' if kind == 'worse' else 'gone'}"] if mistakes else []
        verdict = "worse" if worst in GRAVE else "better" if worst == "better" else "nothing better or worse"
        return f"{verdict}: {', '.join(parts)}"

    @property
    def document(self) -> Document:
        """The document: verdict, possible causes, and the table, with the rows of each changed case."""
        rows = [row for case in self.cases if case.kinds for row in case.rows]
        mistakes = [{"kind": kind, "lines": said, "checks": checks} for (kind, said), checks in self.mistakes.items()]
        data = {
            "names": self.names, "rows": list(map(asdict, rows)), "mistakes": mistakes, "environment": self.environment,
            "notes": self.notes, "unchanged": sum(not case.kinds for case in self.cases), "exit_code": self.exit_code,
        }  # fmt: skip
        tone = "bad" if self.exit_code else "good" if "better" in self.kinds else ""
        view = {**data, "headline": self.headline, "rows": list(map(_cells, rows))}
        return Document("changes", view, "What changed between two runs", tone, data)


def _cells(change: Change) -> Row:
    what = Span(change.what, _TONES[change.kind] if change.kind else "")
    return what, change.kind or "", change.before, change.after, change.reason


def changes(before: Results, after: Results, names: tuple[str, str] = ("before", "after")) -> Changes:
    """Compare all cases of two runs.

    Goldens that differ in version or digest are different goldens, and their cases are not compared. If each run has only one
    implementation, these two are compared with each other, whatever their names. `names` are those of the runs in the report.
    """
    runs = (before, after)
    goldens = [{name: golden.identity for header in r.headers for name, golden in header.goldens.items()} for r in runs]
    apart = sorted(g for g in goldens[0].keys() & goldens[1].keys() if goldens[0][g] != goldens[1][g])
    candidates = [sorted({c.implementation for c in r.checks}) for r in runs]
    is_pair = [len(of) for of in candidates] == [1, 1] and candidates[0] != candidates[1]
    renamed = [*candidates[0], *candidates[1]] if is_pair else []
    old, new = ({_key(c.check, renamed): c for c in r.cases if c.check.golden not in apart} for r in runs)
    cases = [_case(old.get(key), new.get(key)) for key in {**old, **new}]
    notes = [f"{name}: {note}" for name, r in zip(names, runs, strict=True) for note in r.notes]
    notes += [f"golden {g} is another: its verdicts are not compared" for g in apart]
    unknown = [name for name, r in zip(names, runs, strict=True) if r.cases and not r.headers]
    notes += [f"{name} has no header: which versions of the goldens it ran on is not known" for name in unknown]
    notes += ["{} was compared with {}, the only implementation of either run".format(*renamed)] if renamed else []
    worst_first = sorted(cases, key=lambda c: min(map(KINDS.index, c.kinds), default=len(KINDS)))
    return Changes(names, tuple(worst_first), tuple(_differing(before, after, renamed)), tuple(notes), after.sound)


def _key(c: CheckRecord, renamed: Sequence[str]) -> tuple[str, ...]:
    return ("" if renamed else c.implementation, c.golden, c.device, c.dtype, c.check)


def _case(before: CaseRecords | None, after: CaseRecords | None) -> CaseChange:
    last = after or before
    assert last is not None
    title, sides = str(last.check.case), [c.check if c else None for c in (before, after)]
    if before and before.check.implementation != last.check.implementation:
        names = (before.check.implementation, last.check.implementation)
        title = title.replace(names[1], " → ".join(names), 1)
    reason = after.check.reason if after and after.check.outcome != "pass" else ""
    outcomes = [_of_check(side) for side in sides]
    check = Change(_kind(*sides), title, outcomes[0], outcomes[1], reason.strip().partition("\n")[0])
    if not before or not after:
        return CaseChange((check,))
    old, new = before.activations, after.activations
    return CaseChange((check, *_activations(old, new)), _new_mistakes(old, new), _new_mistakes(new, old), is_compared=True)


def _result(r: CheckRecord | ActivationRecord | None) -> Outcome | None:
    """Return the outcome; None for a skipped check and for an activation that is not exposed, which have no result."""
    return None if r is None or r.outcome == ("skip" if isinstance(r, CheckRecord) else "not_observed") else r.outcome


def _kind(before: CheckRecord | ActivationRecord | None, after: CheckRecord | ActivationRecord | None) -> Kind | None:
    """Return the change of an outcome; None if it is the same."""
    was, is_ = (_result(r) for r in (before, after))
    if was == is_:
        return None
    if is_ is None:
        return "gone"
    if was is None:
        return "worse" if is_ in FAILING else "new"
    if (was, is_) == ("fail", "xfail"):
        return "known"
    return "worse" if ORDER.index(is_) < ORDER.index(was) else "better"


def _of_check(c: CheckRecord | None) -> str:
    if c is None:
        return ""
    judged = f", {c.judged} of {c.activations} activations" if c.activations else ""
    tried = f", {number(c.tried, 'example')}" if c.tried else ""
    return f"{c.outcome}{judged}{tried}{f', median {sigma(c.median_rms)}' if c.median_rms is not None else ''}"


def _activations(old: Sequence[ActivationRecord], new: Sequence[ActivationRecord]) -> Iterator[Change]:
    """Yield a row for each kind of change, with the places of all activations that changed so on some batch."""
    sides = [{(a.batch, a.activation): a for a in sorted(of, key=lambda a: -ORDER.index(a.outcome))} for of in (old, new)]
    keys = dict.fromkeys((a.batch, a.activation) for of in (old, new) for a in of)
    changed = [(_kind(*(side.get(key) for side in sides)), key[1]) for key in keys]
    for kind in KINDS:
        if names := list(dict.fromkeys(name for each, name in changed if each == kind)):
            yield Change(kind, where(names, layers_of((*old, *new))), activations=len(names))


def _new_mistakes(before: Sequence[ActivationRecord], after: Sequence[ActivationRecord]) -> tuple[Finding, ...]:
    """Return the mistakes of `after`, each restricted to the steps at which `before` does not have it.

    Known failures count: declaring a failure as known removes no mistake.
    """
    old, new = (findings(replace_record(a, outcome="fail") if a.outcome == "xfail" else a for a in of) for of in (before, after))
    limit, restricted = filter_limit((*before, *after)), []
    for finding in new:
        there = {step for other in old if is_same_mistake(finding, other, limit) for step in other.steps}
        restricted.append(replace(finding, steps=tuple(step for step in finding.steps if step not in there)))
    return tuple(f for f in restricted if f.steps)


def _differing(before: Results, after: Results, renamed: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what differs in the headers; what one of the runs does not record is left out."""
    old, new = _facts(before, dict(pairwise(renamed))), _facts(after, {})
    yield from ((what, old[what], new[what]) for what in old if what in new and old[what] != new[what])


def _facts(results: Results, renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the judged candidates, of the libraries, and the conditions of a run, by name."""
    judged = {check.implementation for check in results.checks}
    values: dict[str, set[str]] = {}
    for header in results.headers:
        for name in sorted(header.implementations.keys() & judged):
            record = header.implementations[name]
            values.setdefault(renamed.get(name, name), set()).add(f"{record.distribution} {record.version}, {record.origin}")
        for what in _ENVIRONMENT:
            if (value := getattr(header, what)) != "":
                values.setdefault(what, set()).add("none" if value is None else str(value))
    return {what: " and ".join(sorted(each)) for what, each in values.items()}
