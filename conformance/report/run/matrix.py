"""The verdict matrix, and the matrix of detection power. Pure functions of the records."""

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.judge.statistics import SEPARABLE_Z
from conformance.results.outcomes import ORDER, OUTCOME_TEXT, Outcome, Tone
from conformance.results.records import CaseRecords, CheckRecord, Sensitivity

Setting = tuple[str, str, str]  # golden, device, dtype


@dataclass(frozen=True)
class Group:
    """All checks of one candidate in one setting, worst first."""

    anchor: str
    implementation: str
    setting: Setting
    cases: tuple[CaseRecords, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst; a check that was skipped says nothing where another was not."""
        return next((c.check.outcome for c in self.cases if c.check.outcome != "skip"), "skip")

    @property
    def tone(self) -> Tone:
        """The outcome's."""
        return OUTCOME_TEXT[self.outcome].tone

    @property
    def word(self) -> str:
        """The outcome for people."""
        return OUTCOME_TEXT[self.outcome].of_check

    @property
    def glyph(self) -> str:
        """The outcome as a sign."""
        return OUTCOME_TEXT[self.outcome].symbol

    @property
    def coverage(self) -> str:
        """Of the check that saw most."""
        check = max((c.check for c in self.cases), key=lambda c: c.judged)
        return f"{check.judged} of {check.activations}" if check.activations else ""

    @property
    def ran(self) -> str:
        """How many of the declared checks ran, where there is more than one."""
        declared = [c.check for c in self.cases if c.check.declared]
        skipped = sum(c.check.outcome == "skip" for c in self.cases)
        rendered = f"{sum(c.executed for c in declared)} of {len(declared)} checks" if len(declared) > 1 else ""
        return ", ".join(part for part in (rendered, f"{skipped} skipped" if skipped and len(self.cases) > skipped else "") if part)


def groups(cases: Sequence[CaseRecords]) -> list[Group]:
    """Worst first; of equals the first to have run."""
    found: dict[tuple[str, Setting], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        found.setdefault((c.implementation, (c.golden, c.device, c.dtype)), []).append(case)
    made = [
        Group(
            f"case-{n}",
            name,
            setting,
            tuple(sorted(of_one, key=lambda c: (ORDER.index(c.check.outcome), c.check.check != "values"))),
        )
        for n, ((name, setting), of_one) in enumerate(found.items(), 1)
    ]
    return sorted(made, key=lambda g: ORDER.index(g.outcome))


@dataclass(frozen=True)
class Matrix:
    """Implementations, worst first, by settings; None where one was not run."""

    settings: tuple[Setting, ...]
    rows: tuple[tuple[str, tuple[Group | None, ...]], ...]


def matrix(found: Sequence[Group]) -> Matrix:
    """Of groups that are sorted."""
    settings = tuple(dict.fromkeys(g.setting for g in sorted(found, key=lambda g: int(g.anchor.partition("-")[2]))))
    at = {(g.implementation, g.setting): g for g in found}
    names = dict.fromkeys(g.implementation for g in found)
    return Matrix(settings, tuple((name, tuple(at.get((name, s)) for s in settings)) for name in names))


@dataclass(frozen=True)
class Coverage:
    """How a fault would have been seen in a setting: at how many of its places, and how well at the weakest."""

    rendered: str
    everywhere: bool
    about: str


@dataclass(frozen=True)
class Power:
    """Faults by settings; None where the fault changes nothing that was seen. Faults that can hide come first."""

    settings: tuple[Setting, ...]
    rows: tuple[tuple[str, tuple[Coverage | None, ...]], ...]
    hidden: int


def power(cases: Sequence[CaseRecords]) -> Power:
    """Of the passing candidate that shows most in each setting."""
    best: dict[Setting, CheckRecord] = {}
    for c in (case.check for case in cases):
        setting = (c.golden, c.device, c.dtype)
        if c.outcome == "pass" and c.excludes and c.check == "values" and (setting not in best or best[setting].judged < c.judged):
            best[setting] = c
    by_fault: dict[str, dict[Setting, Coverage]] = {}
    for setting, check in best.items():
        for s in check.excludes:
            by_fault.setdefault(s.fault, {})[setting] = _seen(s)
    rows = [(fault, tuple(seen.get(s) for s in best)) for fault, seen in by_fault.items()]
    rows.sort(key=lambda row: (all(s is None or s.everywhere for s in row[1]), row[0]))
    return Power(tuple(best), tuple(rows), sum(any(s and not s.everywhere for s in row[1]) for row in rows))


def _seen(s: Sensitivity) -> Coverage:
    everywhere = s.separable == s.places
    about = "" if everywhere else f"expected z = {s.expected_z:.2g} at {s.weakest}, {SEPARABLE_Z:.0f} are needed"
    return Coverage(f"{s.separable} of {s.places}", everywhere, about)
