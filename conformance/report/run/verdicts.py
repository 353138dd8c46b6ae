"""Summary of a run for its page: failing candidates with reasons, verdicts by candidate and setting, and detectable mistakes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.numerics.thresholds import SEPARABLE_Z
from conformance.report.coverage_sentences import mistakes, weakest, without_effect
from conformance.report.document import Block, Column, Folded, Heading, Items, Paragraph, Row, TextSpan, tabled
from conformance.report.finding_sentences import sentence
from conformance.report.findings import layers_of
from conformance.report.run.case import first_line
from conformance.report.run.repeated import same_as_values, values_by_setting
from conformance.results.outcomes import FAILING, ORDER, OUTCOME_TEXT, Outcome, Tone
from conformance.results.records import CaseRecords, CheckRecord, Sensitivity

Setting = tuple[str, str, str]  # golden, device, dtype
Links = Mapping[int, str]  # maps the Python id of a case to the id of its section

_REASONS = 5  # maximum number of reasons of a candidate in the summary; its sections have all of them


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
    def tone(self) -> Tone:
        """The tone of the outcome."""
        return OUTCOME_TEXT[self.outcome].tone

    @property
    def coverage(self) -> str:
        """The coverage of the check `values`, else of the check that judged the most activations; empty if none are known."""
        check = max((c.check for c in self.cases), key=lambda c: (c.check == "values", c.judged))
        which = "" if check.check == "values" else f" in the check {check.check}"
        return f"{check.judged} of {check.activations} activations{which}" if check.activations else ""

    @property
    def ran(self) -> str:
        """The number of declared checks that ran, if more than one is declared, and the number of skipped checks."""
        declared = [c.check for c in self.cases if c.check.declared]
        skipped = sum(c.check.outcome == "skip" for c in self.cases)
        rendered = f"{sum(c.executed for c in declared)} of {len(declared)} checks" if len(declared) > 1 else ""
        return ", ".join(part for part in (rendered, f"{skipped} skipped" if skipped and len(self.cases) > skipped else "") if part)


def candidate_checks(cases: Sequence[CaseRecords]) -> list[CandidateChecks]:
    """Group cases by candidate and setting, worst first; ties are in the order in which they ran."""
    found: dict[tuple[str, Setting], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        found.setdefault((c.implementation, (c.golden, c.device, c.dtype)), []).append(case)
    ordered = (
        CandidateChecks(
            name, setting, tuple(sorted(of_one, key=lambda c: (ORDER.index(c.check.outcome), c.check.check != "values")))
        )
        for (name, setting), of_one in found.items()
    )
    return sorted(ordered, key=lambda g: ORDER.index(g.outcome))


def summary(found: Sequence[CandidateChecks], links: Links) -> Iterator[Block]:
    """Yield the list of candidates that do not conform, worst first, each with its reasons, largest first, linked to sections.

    Checks that find the mistakes of the check `values` only are left out.
    """
    values = values_by_setting(case for g in found for case in g.cases)
    reasons: dict[str, dict[str, list[tuple[CandidateChecks, CaseRecords]]]] = {}
    for g in found:
        for case in g.cases if g.tone == "bad" else ():
            if same_as_values(case, values):
                continue
            for why in dict.fromkeys(_reasons(case)):
                reasons.setdefault(g.implementation, {}).setdefault(why, []).append((g, case))
    if reasons:
        yield Heading("What is wrong", level=2)
        yield Items(tuple((name, *_listed(of_one, links)) for name, of_one in reasons.items()))


def _listed(reasons: Mapping[str, Sequence[tuple[CandidateChecks, CaseRecords]]], links: Links) -> Iterator[TextSpan | str]:
    for why, places in list(reasons.items())[:_REASONS]:
        yield TextSpan(why, "", links[id(places[0][1])], f"on {'; '.join(dict.fromkeys(', '.join(g.setting) for g, _ in places))}")
    if len(reasons) > _REASONS:
        yield f"and {len(reasons) - _REASONS} more below"


def _reasons(case: CaseRecords) -> Iterable[str]:
    """Yield the mistakes found by the check `values`; for other checks or without mistakes, the first line of the reason."""
    c = case.check
    if c.outcome not in FAILING:
        return
    found = mistakes(case.activations) if c.check == "values" else ()
    layers = layers_of(case.activations)
    yield from ("; ".join(filter(None, (sentence(m, layers), m.hidden, *m.anatomy))) for m in found)
    if not found:
        yield f"{'' if c.check == 'values' else f'{c.check}: '}{first_line(c.reason) or c.outcome}"


def matrix(found: Sequence[CandidateChecks], links: Links) -> Iterator[Block]:
    """Yield the table of verdicts, with candidates as rows, worst first, and settings as columns."""
    settings = sorted(dict.fromkeys(g.setting for g in found))
    at = {(g.implementation, g.setting): g for g in found}
    rows = [
        Row((name, *(_verdict(at.get((name, setting)), links) for setting in settings)))
        for name in dict.fromkeys(g.implementation for g in found)
    ]
    if rows:
        yield Heading("Verdicts", level=2)
        yield from tabled((Column("candidate"), *(Column(", ".join(s), is_text=True) for s in settings)), [("", rows)])
        yield Paragraph(
            "Below each verdict: how many of the network's activations were judged. One that the candidate does not expose is "
            "judged only as a part of the next one that it does expose; if there is none after it, it is not judged at all.",
            "quiet",
        )


def _verdict(group: CandidateChecks | None, links: Links) -> TextSpan:
    if group is None:
        return TextSpan("not run", "quiet")
    text = OUTCOME_TEXT[group.outcome]
    note = ", ".join(part for part in (group.coverage, group.ran) if part)
    return TextSpan(f"{text.symbol} {text.of_check}", group.tone, links[id(group.worst)], note)


def power(cases: Sequence[CaseRecords]) -> Iterator[Block]:
    """Yield the table of detectable mistakes in each setting, for the passing candidate that exposes most activations.

    Mistakes that could remain undetected at some step come first.
    """
    best: dict[Setting, CheckRecord] = {}
    for c in (case.check for case in cases):
        setting = (c.golden, c.device, c.dtype)
        if c.outcome == "pass" and c.excludes and c.check == "values" and (setting not in best or best[setting].judged < c.judged):
            best[setting] = c
    by_fault: dict[str, dict[Setting, Sensitivity]] = {}
    for setting, check in best.items():
        for s in check.excludes:
            by_fault.setdefault(s.fault, {})[setting] = s
    if not by_fault:
        return
    undetectable = {fault for fault, seen in by_fault.items() if any(s.separable < s.places for s in seen.values())}
    names = sorted(by_fault, key=lambda fault: (fault not in undetectable, fault))
    found = (
        f"{len(undetectable)} of them could remain undetected at some place; they come first"
        if undetectable
        else "None of them could remain undetected"
    )
    none = len(without_effect(by_fault))
    others = f"{none} more change none, in these networks and on these inputs. " if none else ""
    yield Heading("What would have been detected", level=2)
    yield Paragraph(
        f"For each of the {len(names)} mistakes of the catalogue that would change a judged activation here: at how many of the "
        "places where it can act its effect is large enough to be distinguished from rounding, by the passing candidate that "
        f"exposes most activations. {found}. {others}Mistakes whose parameters are fitted, such as "
        "parameters-other, are not listed."
    )
    columns = (Column("mistake"), *(Column(", ".join(s), is_text=True) for s in best))
    rows = [Row((fault, *(_seen(by_fault[fault].get(s)) for s in best))) for fault in names]
    yield Folded(f"all {len(rows)} mistakes", tuple(tabled(columns, [("", rows)])))


def _seen(s: Sensitivity | None) -> TextSpan:
    if s is None:
        return TextSpan("no effect here", "quiet")
    if s.separable == s.places:
        return TextSpan(f"{s.separable} of {s.places}")
    about = f"{weakest(s)}; detected with certainty from an expected z of {SEPARABLE_Z:.0f}"
    return TextSpan(f"{s.separable} of {s.places}", "odd", note=about)
