"""Document of a run: counts, then candidates, worst first, then notes, as on missing results. Pure functions of the records."""

from collections.abc import Iterator, Sequence

from conformance.report.axis import sigma
from conformance.report.coverage_sentences import (
    duration,
    headline,
    mistakes,
    number,
    of_sizes,
    padding,
    rendered,
    searched,
    subject,
)
from conformance.report.document import (
    Abridged,
    Block,
    Column,
    Document,
    Filtered,
    Folded,
    Heading,
    Headline,
    Lists,
    Paragraph,
    Section,
    tabled,
)
from conformance.report.run.case import case_blocks, has_script, script_file
from conformance.report.run.repeated import by_reason, further, same_as_values, values_by_setting
from conformance.report.run.run_environment import environment, reading
from conformance.report.run.verdicts import CandidateChecks, candidate_checks, matrix, power, summary
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.results.records import CaseRecords, CheckRecord, Results
from conformance.results.result import Result
from conformance.results.to_records import activation_records, check_record, footer

Cases = list[CaseRecords]

LEGEND = ("sigma", "origin", "local rms", "max", "limit", "global rms", "amplitude", "z")
PADDING = "padding is not judged: a correct candidate may compute anything there; attention to padding must be zero"


def document(results: Results) -> Document:
    """Return the document of a run."""
    counts = results.footer or footer(results.checks)
    found = candidate_checks(results.cases)
    notes = tuple(Headline(str(note), "bad" if note.grave else "odd") for note in results.remarks)
    sections = _sections(results)
    links = {id(case): section.id for section, cases in sections for case in cases}
    shown = Filtered(tuple(section for section, _ in sections))
    blocks = (
        Abridged(tuple(_started(results))),
        Headline(headline(counts, results.remarks)),
        Abridged((*notes, *summary(found, links), *matrix(found, links), Heading("Candidates", level=2), reading())),
        shown,
        *_every_check(results.cases),
        *_unconfirmed(results),
        *([Abridged((), tuple(_legend(results)))] if any(a.outcome == "fail" and a.local for a in results.activations) else []),
        *([] if counts.ran else [Headline("Nothing was judged, so nothing conforms.", "bad")]),
        Abridged((), tuple(_scripts(results))),
        Abridged((*power(results.cases), *environment(results)), notes),
    )
    conforms = not any(g.tone == "bad" for g in found) and any(g.tone == "good" for g in found) and results.sound
    return Document(_title(results, found), blocks, "good" if conforms else "bad" if any(g.tone == "bad" for g in found) else "")


def _scripts(results: Results) -> Iterator[Block]:
    """Yield the names of the saved scripts, which a page has beside their failures."""
    files = [(subject(c), (script_file(c),)) for c in results.checks if has_script(c)] if results.headers else []
    if files:
        yield Folded("scripts that reproduce the failures, in the folder of the results file", (Lists(tuple(files)),), long=True)


def case_document(result: Result) -> Document:
    """Return the document of one case."""
    return Document("", tuple(case_blocks(CaseRecords(check_record(result), tuple(activation_records(result))))))


def _legend(results: Results) -> Iterator[Block]:
    """Yield the terms that are shown of failures, which `explain` explains, and a remark on padding if a failing batch has any."""
    shown = _shown(results)
    terms = ", ".join(name for name in (*LEGEND, "±") if name in shown)
    yield Heading("how errors are measured", f"`bert-conformance explain TERM`, of {terms}")
    masks = (c.counterexample.batch.get("attention_mask") for c in results.checks if c.counterexample)
    if any(any(map(any, padding(mask))) for mask in masks if mask):
        yield Paragraph(PADDING)


def _shown(results: Results) -> set[str]:
    """Return the terms that the columns and sentences about failures contain: a run of depth `screen` has no z, for example."""
    failed = [a for a in results.activations if a.outcome == "fail" and a.local is not None]
    found = (
        {"sigma", "origin", "local rms", "max", "limit"} if any(a.local and a.local.rms is not None for a in failed) else {"origin"}
    )
    found |= {"global rms"} if any(a.global_error is not None and a.global_error.rms is not None for a in failed) else set()
    lines = " ".join(line for case in results.cases for f in mistakes(case.activations) for line in rendered(f, 0))
    return found | {term for term, said in (("amplitude", "amplitude "), ("z", "z = "), ("±", "±")) if said in lines}


def _started(results: Results) -> Iterator[Block]:
    header = results.header
    parts = ("bert-conformance", *(filter(None, (header.suite, header.started)) if header else ()))
    yield Paragraph(" ".join(parts), "quiet")


def _title(results: Results, found: Sequence[CandidateChecks]) -> str:
    names = list(dict.fromkeys(c.implementation for c in results.checks))
    bad = {g.implementation for g in found if g.tone == "bad"}
    wrong = {g.implementation for g in found if g.tone == "bad" and g.outcome != "error"}
    if len(names) == 1:
        return f"{names[0]} {'does not conform' if wrong else 'could not be judged'}" if bad else f"{names[0]}: {_fine(results)}"
    judged = {g.implementation for g in found if g.outcome != "skip"}
    of = f" of {len(names)} candidates"
    counts = [f"{len(wrong)}{of} {'does' if len(wrong) == 1 else 'do'} not conform"] if wrong else []
    counts += [f"{len(bad - wrong)}{'' if wrong else of} could not be judged"] if bad - wrong else []
    counts += [] if bad else [f"{len(judged)}{of}: {_fine(results)}"]
    counts += [f"{len(names) - len(judged)} skipped"] if len(judged) < len(names) else []
    return ", ".join(counts)


def _fine(results: Results) -> str:
    """Return the verdict on a run in which nothing fails."""
    outcomes = {c.outcome for c in results.checks}
    if not results.sound:
        return "incomplete; no failure in what was judged"
    return "nothing was judged" if not outcomes - {"skip"} else "known failures only" if "xfail" in outcomes else "all conforms"


def _unconfirmed(results: Results) -> Iterator[Block]:
    """Yield, for each user's checkpoint on which a check passed, the sentence about properties that a pass does not confirm."""
    passed = {check.golden for check in results.checks if check.outcome == "pass"}
    found = {(name, g.unconfirmed) for h in results.headers for name, g in h.goldens.items() if g.unconfirmed and name in passed}
    yield from (Paragraph(f"{name}: {sentence}") for name, sentence in sorted(found))


def _sections(results: Results) -> list[tuple[Section, Cases]]:
    """Return the sections, each with its cases: single cases or those of one reason, worst first, then grouped passes."""
    apart, together = _grouped(results.cases)
    before, repeated, values = None, by_reason(apart), values_by_setting(apart)
    found: list[tuple[Section, Cases]] = []
    for case in sorted(apart, key=lambda c: ORDER.index(c.check.outcome)):
        alike = repeated.get(id(case), [case])
        if case is alike[0]:
            close = case.check.outcome == before == "skip"
            blocks = (
                *case_blocks(case, results.headers, close=close, same=same_as_values(case, values)),
                *map(Paragraph, further(case, alike[1:])),
            )
            found.append((_section(blocks, case.check, len(found)), alike))
        before = case.check.outcome
    for cases in together:
        found.append((_section(tuple(_passes([c.check for c in cases])), cases[0].check, len(found)), cases))
    return found


def _section(blocks: tuple[Block, ...], c: CheckRecord, number: int) -> Section:
    facets = {"name": c.implementation, "golden": c.golden, "device": c.device, "format": c.dtype, "outcome": c.outcome}
    return Section(blocks, OUTCOME_TEXT[c.outcome].tone, f"case-{number + 1}", tuple(facets.items()))


def _grouped(cases: Sequence[CaseRecords]) -> tuple[Cases, list[Cases]]:
    """Split cases into those shown singly and groups of passes of one candidate in one setting, other than the check `values`."""
    groups: dict[tuple[str, ...], Cases] = {}
    for case in cases:
        c = case.check
        if c.outcome == "pass" and c.check != "values":
            groups.setdefault((c.implementation, c.golden, c.device, c.dtype), []).append(case)
    together = [group for group in groups.values() if len(group) > 1]
    grouped = {id(case) for group in together for case in group}
    return [case for case in cases if id(case) not in grouped], together


def _passes(checks: Sequence[CheckRecord]) -> Iterator[Block]:
    """Yield the blocks about several passing checks of one candidate."""
    first, searches = checks[0], [c for c in checks if c.tried]
    candidate = f"{first.implementation} on {first.golden}, {first.device}, {first.dtype}"
    yield Heading(candidate, f"passes {len(checks)} more checks", "good")
    yield Paragraph(", ".join(c.check for c in checks))
    if searches:
        worst = max(searches, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        tried = sum(c.tried for c in searches)
        searched_in = "1 search" if len(searches) == 1 else f"{len(searches)} searches"
        yield Paragraph(f"{number(tried, 'example')} in {searched_in}{of_sizes(searches)}{largest}, {duration(checks)}")


def _every_check(cases: Sequence[CaseRecords]) -> Iterator[Block]:
    rows = [_row(case.check) for case in sorted(cases, key=lambda c: ORDER.index(c.check.outcome))]
    columns = ("candidate", Column("outcome"), "activations", "median local error")
    if rows:
        yield Folded("every check", tuple(tabled(columns, [("", rows)], most=None)), long=True)


def _row(c: CheckRecord) -> tuple[str, ...]:
    median = "" if c.median_rms is None else sigma(c.median_rms)
    tried = searched(c) if c.outcome == "pass" else number(c.tried, "example")
    return subject(c), c.outcome, f"{c.judged} of {c.activations}" if c.activations else tried if c.tried else "", median
