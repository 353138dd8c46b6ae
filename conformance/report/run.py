"""Document of a run: counts, verdicts by candidate and setting, then the cases, worst first, then notes. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import asdict

from conformance.glossary.terms import TERMS
from conformance.numerics.functions import FUNCTIONS
from conformance.report.axis import sigma
from conformance.report.case import CaseView
from conformance.report.coverage_sentences import (
    duration,
    headline,
    number,
    of_sizes,
    padding,
    searched,
    subject,
)
from conformance.report.document import Document, Row, Span
from conformance.report.repeated import by_reason, further, same_as_values, values_by_setting
from conformance.report.structured import structured
from conformance.results.outcomes import ORDER, OUTCOME_TEXT, Outcome
from conformance.results.records import CaseRecords, CheckRecord, FunctionRecord, Header, MachineRecord, Results
from conformance.results.result import Result
from conformance.results.to_records import footer, records_of

LEGEND = ("sigma", "origin", "local rms", "max", "limit", "global rms", "amplitude", "z", "estimate")
PADDING = "padding is not judged: a correct candidate may compute anything there; attention to padding must be zero"

Setting = tuple[str, str, str]  # golden, device, dtype


def document(results: Results) -> Document:
    """Return the document of a run."""
    view = RunView(results)
    return Document("run", {"run": view}, view.title, view.tone, lambda: structured(results))


def case_document(result: Result) -> Document:
    """Return the document of one case."""
    return Document("one_case", {"c": CaseView(records_of(result))})


@dataclass(frozen=True)
class CandidateChecks:
    """All checks of one candidate in one setting, worst first."""

    implementation: str
    setting: Setting
    cases: tuple[CaseRecords, ...]

    @property
    def worst(self) -> CaseRecords:
        """The case with the worst outcome; skipped checks are ignored unless all were skipped."""
        return next((c for c in self.cases if c.check.outcome != "skip"), self.cases[0])

    @property
    def outcome(self) -> Outcome:
        """The outcome of the worst case."""
        return self.worst.check.outcome

    @property
    def tone(self) -> str:
        """The tone of the outcome."""
        return OUTCOME_TEXT[self.outcome].tone

    @property
    def note(self) -> str:
        """Why all checks were skipped; else the coverage of the check `values` or of the one that judged most, and the counts."""
        if self.outcome == "skip":
            return self.worst.check.reason.partition("\n")[0]
        widest = max((c.check for c in self.cases), key=lambda c: (c.check == "values", c.judged))
        which = "" if widest.check == "values" else f" in the check {widest.check}"
        declared = [c.check for c in self.cases if c.check.declared]
        skipped = sum(c.check.outcome == "skip" for c in self.cases)
        parts = (
            f"{widest.judged} of {widest.activations} activations{which}" if widest.activations else "",
            f"{sum(c.executed for c in declared)} of {len(declared)} checks" if len(declared) > 1 else "",
            f"{skipped} skipped" if 0 < skipped < len(self.cases) else "",
        )
        return ", ".join(filter(None, parts))


def candidate_checks(cases: Sequence[CaseRecords]) -> list[CandidateChecks]:
    """Group cases by candidate and setting, worst first; ties are in the order in which they ran."""
    found: dict[tuple[str, Setting], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        found.setdefault((c.implementation, (c.golden, c.device, c.dtype)), []).append(case)
    groups = (
        CandidateChecks(*key, tuple(sorted(theirs, key=lambda c: (ORDER.index(c.check.outcome), c.check.check != "values"))))
        for key, theirs in found.items()
    )
    return sorted(groups, key=lambda g: ORDER.index(g.outcome))


@dataclass(frozen=True)
class Passes:
    """Several passing checks of one candidate in one setting, other than the check `values`."""

    checks: tuple[CheckRecord, ...]
    id: str

    @property
    def subject(self) -> str:
        """The candidate and the setting."""
        c = self.checks[0]
        return f"{c.implementation} on {c.golden}, {c.device}, {c.dtype}"

    @property
    def verdict(self) -> Span:
        """How many checks pass."""
        return Span(f"passes {len(self.checks)} more checks", "good")

    @property
    def searches(self) -> str:
        """A sentence on the searches among the checks; empty if there is none."""
        searches = [c for c in self.checks if c.tried]
        if not searches:
            return ""
        worst = max(searches, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        many = "1 search" if len(searches) == 1 else f"{len(searches)} searches"
        tried = number(sum(c.tried for c in searches), "example")
        return f"{tried} in {many}{of_sizes(searches)}{largest}, {duration(self.checks)}"


@dataclass(frozen=True)
class RunView:
    """What the report of a run says."""

    results: Results

    @cached_property
    def groups(self) -> list[CandidateChecks]:
        """The candidates in each setting, worst first."""
        return candidate_checks(self.results.cases)

    @property
    def title(self) -> str:
        """The verdict on the run."""
        names = list(dict.fromkeys(c.implementation for c in self.results.checks))
        bad = {g.implementation for g in self.groups if g.tone == "bad"}
        wrong = {g.implementation for g in self.groups if g.tone == "bad" and g.outcome != "error"}
        if len(names) == 1:
            failure = "does not conform" if wrong else "could not be judged"
            return f"{names[0]} {failure}" if bad else f"{names[0]}: {self._fine}"
        judged = {g.implementation for g in self.groups if g.outcome != "skip"}
        of = f" of {len(names)} candidates"
        counts = [f"{len(wrong)}{of} {'does' if len(wrong) == 1 else 'do'} not conform"] if wrong else []
        counts += [f"{len(bad - wrong)}{'' if wrong else of} could not be judged"] if bad - wrong else []
        counts += [] if bad else [f"{len(judged)}{of}: {self._fine}"]
        counts += [f"{len(names) - len(judged)} skipped"] if len(judged) < len(names) else []
        return ", ".join(counts)

    @property
    def _fine(self) -> str:
        """The verdict on a run in which nothing fails."""
        outcomes = {c.outcome for c in self.results.checks}
        if not self.results.sound:
            return "incomplete; no failure in what was judged"
        return "nothing was judged" if not outcomes - {"skip"} else "known failures only" if "xfail" in outcomes else "all conforms"

    @property
    def tone(self) -> str:
        """The tone of the verdict."""
        tones = {g.tone for g in self.groups}
        return "bad" if "bad" in tones else "good" if "good" in tones and self.results.sound else ""

    @property
    def ran(self) -> int:
        """The number of checks that came to a judgement."""
        return (self.results.footer or footer(self.results.checks)).ran

    @property
    def headline(self) -> str:
        """The counts of the run."""
        return headline(self.results.footer or footer(self.results.checks), self.results.remarks)

    @property
    def started(self) -> str:
        """Version and time."""
        header = self.results.header
        return " ".join(("bert-conformance", *(filter(None, (header.suite, header.started)) if header else ())))

    @property
    def remarks(self) -> list[Span]:
        """The notes on the results."""
        return [Span(str(note), "bad" if note.grave else "odd") for note in self.results.remarks]

    @cached_property
    def sections(self) -> list[CaseView | Passes]:
        """The cases: single ones or those of one reason, worst first, then grouped passes."""
        apart, together = _grouped(self.results.cases)
        repeated, values = by_reason(apart), values_by_setting(apart)
        found: list[CaseView | Passes] = []
        for case in sorted(apart, key=lambda c: ORDER.index(c.check.outcome)):
            alike = repeated.get(id(case), [case])
            if case is alike[0]:
                more = tuple(further(case, alike[1:]))
                found.append(CaseView(case, self.results.headers, same_as_values(case, values), more, f"case-{len(found) + 1}"))
        return [*found, *(Passes(tuple(c.check for c in group), f"case-{len(found) + i}") for i, group in enumerate(together, 1))]

    @property
    def wrong(self) -> list[CaseView]:
        """The failing cases whose mistakes no other one has."""
        return [s for s in self.sections if isinstance(s, CaseView) and s.fails and not s.same]

    @property
    def matrix(self) -> tuple[list[str], list[Row]]:
        """The verdicts, with candidates as rows, worst first, and settings as columns; no rows if there is a single verdict."""
        settings = sorted(dict.fromkeys(g.setting for g in self.groups))
        at = {(g.implementation, g.setting): g for g in self.groups}
        rows: list[Row] = [
            (name, *(self._verdict(at.get((name, setting))) for setting in settings))
            for name in dict.fromkeys(g.implementation for g in self.groups)
        ]
        return ["candidate", *(", ".join(s) for s in settings)], rows if len(self.groups) > 1 else []

    def _verdict(self, group: CandidateChecks | None) -> Span:
        if group is None:
            return Span("not run", "quiet")
        text = OUTCOME_TEXT[group.outcome]
        return Span(f"{text.symbol} {text.of_check}", group.tone, note=group.note)

    @property
    def checks(self) -> list[Row]:
        """A row for each check."""
        return [_row(case.check) for case in sorted(self.results.cases, key=lambda c: ORDER.index(c.check.outcome))]

    @property
    def unconfirmed(self) -> list[str]:
        """For each user's checkpoint on which a check passed, a sentence about properties that a pass does not confirm."""
        passed = {check.golden for check in self.results.checks if check.outcome == "pass"}
        goldens = {(n, g.unconfirmed) for h in self.results.headers for n, g in h.goldens.items() if g.unconfirmed and n in passed}
        return [f"{name}: {said}" for name, said in sorted(goldens)]

    @property
    def terms(self) -> list[tuple[str, str]]:
        """The terms of the columns and sentences about failures, with their meanings; none without a failure."""
        if not any(a.outcome == "fail" and a.local is not None for a in self.results.activations):
            return []
        return [(name, TERMS[name].meaning) for name in LEGEND]

    @property
    def padding(self) -> str:
        """A remark on padding if a failing batch has any."""
        masks = (c.counterexample.batch.get("attention_mask") for c in self.results.checks if c.counterexample)
        return PADDING if any(any(map(any, padding(mask))) for mask in masks if mask) else ""

    @property
    def environments(self) -> list[list[Row]]:
        """The facts on software and machine of each run."""
        headers = [h for n, h in enumerate(self.results.headers) if h not in self.results.headers[:n]]
        judged = {check.implementation for check in self.results.checks}
        return [list(_facts(header, judged)) for header in headers]


def _grouped(cases: Sequence[CaseRecords]) -> tuple[list[CaseRecords], list[list[CaseRecords]]]:
    """Split cases into those shown singly and groups of passes of one candidate in one setting, other than the check `values`."""
    groups: dict[tuple[str, ...], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        if c.outcome == "pass" and c.check != "values":
            groups.setdefault((c.implementation, c.golden, c.device, c.dtype), []).append(case)
    together = [group for group in groups.values() if len(group) > 1]
    grouped = {id(case) for group in together for case in group}
    return [case for case in cases if id(case) not in grouped], together


def _row(c: CheckRecord) -> Row:
    tried = searched(c) if c.outcome == "pass" else number(c.tried, "example")
    judged = f"{c.judged} of {c.activations}" if c.activations else tried if c.tried else ""
    return subject(c), c.outcome, judged, "" if c.median_rms is None else sigma(c.median_rms)


def _largest_error(name: str, measured: FunctionRecord) -> str:
    """Return the absolute error of a function with a bounded scale, otherwise the error in ULP."""
    is_absolute = name not in FUNCTIONS or FUNCTIONS[name].has_zero
    value = measured.absolute if is_absolute else measured.ulp
    return "not finite" if value is None else f"{value:.2g}" if is_absolute else f"{value:.2g} ULP"


def _facts(header: Header, judged: set[str]) -> Iterator[Row]:
    """Yield the fields of a header that are known, the versions of candidates and goldens, and the arithmetic of the machine."""
    for name, value in asdict(header).items():
        if value not in (None, "", {}) and not isinstance(value, dict | MachineRecord):
            yield name.replace("_", " "), str(value)
    for name, candidate in header.implementations.items():
        if name in judged:
            yield name, f"{candidate.distribution} {candidate.version}, {candidate.origin}"
    yield from ((name, "an object whose version is not known") for name in sorted(judged - header.implementations.keys()))
    for name, g in header.goldens.items():
        yield (
            f"golden {name}",
            f"version {g.version}, {g.source}; SHA-256 of inputs {g.stored_digest}, of weights {g.weights_digest}",
        )
    for machine in filter(None, [header.machine]):
        bits = ", ".join(f"{name} {'unknown' if bits is None else bits}" for name, bits in machine.products.items())
        settings = ", ".join(f"{name} {value}" for name, value in machine.settings.items())
        errors = ", ".join(f"{name} {_largest_error(name, f)}" for name, f in machine.functions.items())
        yield "float32", f"{machine.instruction_set}; effective bits of products: {bits}; {settings}"
        yield "functions", f"largest errors, absolute or in ULP: {errors}; for gelu and gelu_tanh: the error of their erf or tanh"
