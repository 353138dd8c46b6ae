"""The terminal's report: counts first, then candidates, worst first, at the end what is missing. A pure function of the records."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from conformance.report.findings import Finding, layers_of
from conformance.report.layout import BLANK, MEASURE, TONES, Line, line, listed, spans, table
from conformance.report.printable import printable_lines
from conformance.report.words import exclusion_lists, headline, mistakes, place, rendered, searched, smallest, subject, verdict
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, CounterexampleRecord, Footer, Note, Results
from conformance.results.result import Result
from conformance.results.to_records import activation_records, check_record

_WORST = 5  # lines of failing activations a candidate; the results file has them all


def render(results: Results, footer: Footer, console: Console) -> None:
    """Print a run."""
    for text in written(results, footer, console.width):
        console.print(text, soft_wrap=True)


def written(results: Results, footer: Footer, width: int) -> Iterator[Text]:
    """A run in lines of `width` columns."""
    for told_line in _report(results, footer, width):
        yield from told_line.wrapped(width)


def text(result: Result) -> str:
    """One case's report as plain text."""
    lines = _check(check_record(result), activation_records(result), MEASURE)
    return "\n".join(text.plain for told_line in lines for text in told_line.wrapped(MEASURE))


def _report(results: Results, footer: Footer, width: int) -> Iterator[Line]:
    yield line(headline(footer, results.remarks), "bold")
    apart, together = _grouped(results.cases)
    before = None
    for case in sorted(apart, key=lambda c: ORDER.index(c.check.outcome)):
        if not case.check.outcome == before == "skip":
            yield BLANK
        yield from _check(case.check, case.activations, width)
        before = case.check.outcome
    for checks in together:
        yield BLANK
        yield from _passes(checks)
    if not footer.ran:
        yield from (BLANK, line("Nothing was judged, so nothing conforms.", "bold red"))
    if results.remarks:
        yield BLANK
        yield from map(_note, results.remarks)


def _note(note: Note) -> Line:
    return line(str(note), "bold red" if note.grave else "yellow")


def _grouped(cases: Sequence[CaseRecords]) -> tuple[list[CaseRecords], list[list[CheckRecord]]]:
    """Cases that are shown one by one, and the passes of each candidate that are shown in one paragraph: all but its values."""
    groups: dict[tuple[str, ...], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        if c.outcome == "pass" and c.check != "values":
            groups.setdefault((c.implementation, c.golden, c.device, c.dtype), []).append(case)
    together = [group for group in groups.values() if len(group) > 1]
    grouped = {id(case) for group in together for case in group}
    return [case for case in cases if id(case) not in grouped], [[case.check for case in group] for group in together]


def _passes(checks: Sequence[CheckRecord]) -> Iterator[Line]:
    """Checks of one candidate that pass."""
    first, searches = checks[0], [c for c in checks if c.tried]
    who = f"{first.implementation} on {first.golden}, {first.device}, {first.dtype}"
    yield spans((who, "bold"), (": ", ""), (f"conforms in {len(checks)} checks more", TONES["good"]))
    yield line(", ".join(c.check for c in checks), indent=2, hang=0)
    if searches:
        worst = max(searches, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        tried, seconds = sum(c.tried for c in searches), sum(c.seconds for c in checks)
        yield line(f"{tried} examples in {len(searches)} searches{largest}, {seconds:.1f} s", indent=2)


def _check(check: CheckRecord, activations: Sequence[ActivationRecord], width: int) -> Iterator[Line]:
    yield spans((subject(check), "bold"), (": ", ""), (verdict(check), TONES[OUTCOME_TEXT[check.outcome].tone]))
    failed = [a for a in activations if a.outcome == "fail"]
    if check.reason and (check.outcome != "fail" or check.tried or not failed):
        yield from _reason(check.reason)
    if check.tried and check.counterexample:
        yield from _smallest(check.counterexample)
    if failed:
        yield from _failures(failed, activations, width)
    elif check.outcome == "pass" and check.tried:
        yield line(f"{searched(check)}, {check.seconds:.1f} s", indent=2)
    elif check.outcome == "pass" and check.median_rms is not None:
        yield line(f"median local error {check.median_rms:.2f} sigma, {check.seconds:.1f} s", indent=2)
        for what, of in exclusion_lists(check.excludes):
            yield listed(what, of, indent=2) if of else line(what, indent=2)


def _reason(reason: str) -> Iterator[Line]:
    """A sentence; a list or a traceback after it stays as it was laid out."""
    first, *rest = printable_lines(reason.rstrip())
    yield line(first, indent=2)
    yield from (line(more, indent=2, hang=None) for more in rest)


def _smallest(found: CounterexampleRecord) -> Iterator[Line]:
    return (line(told_line, indent=2) for told_line in smallest(found))


def _failures(failed: Sequence[ActivationRecord], activations: Sequence[ActivationRecord], width: int) -> Iterator[Line]:
    yield line(f"first origin: {place(failed[0])}", indent=2)
    worst = _worst(failed)
    yield from table(("origin", "local rms", "max", "limit", "global rms"), [_numbers(a) for a in worst], width)
    if len(failed) > len(worst):
        yield line(f"and {len(failed) - len(worst)} more in the results file", indent=2)
    yield from (line(f"{place(a)}: {a.reason}", indent=2) for a in worst if a.reason)
    found = mistakes(activations)
    for finding in found[:_WORST]:
        yield BLANK
        yield from _mistake(finding, layers_of(activations))
    if more := len(found[_WORST:]):
        yield from (BLANK, line(f"and {more} more mistake{'s' if more > 1 else ''} in the results file", indent=2))


def _worst(failed: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """By how many times the limit, worst first; the first origin always among them."""
    worst = sorted(failed, key=lambda a: -(a.excess if a.excess is not None else float("inf")))[:_WORST]
    return worst if any(a is failed[0] for a in worst) else [*worst[:-1], failed[0]]


def _numbers(a: ActivationRecord) -> tuple[str, ...]:
    local, limit = a.local, a.limits.get("rms") if a.local and a.local.rms is not None else None
    numbers = (local and local.rms, local and local.max, limit, a.overall and a.overall.rms)
    return place(a), *("-" if n is None else f"{n:.3g} σ" for n in numbers)


def _mistake(finding: Finding, layers: int) -> Iterator[Line]:
    sentence, *rest = rendered(finding, layers)
    yield line(sentence, "bold", indent=2, hang=4)
    yield from (line(more, indent=4) for more in rest)
