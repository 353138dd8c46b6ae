"""A run as a document: counts first, then candidates, worst first, at the end what is missing. Pure functions of the records."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from conformance.report.document import Block, Code, Document, Folded, Heading, Items, Lists, Paragraph, Table, Verdict
from conformance.report.findings import is_unnamed, layers_of, where
from conformance.report.words import (
    duration,
    exclusion_lists,
    headline,
    mistakes,
    place,
    rendered,
    searched,
    smallest,
    subject,
    verdict,
)
from conformance.results.outcomes import ORDER, OUTCOME_TEXT
from conformance.results.records import ActivationRecord, CaseRecords, CheckRecord, CounterexampleRecord, Results
from conformance.results.result import Result
from conformance.results.to_records import activation_records, check_record, footer

_WORST = 5  # failing activations, and mistakes, a candidate; the results file has them all


def document(results: Results) -> Document:
    """A run."""
    counts = results.footer or footer(results.checks)
    return (
        Verdict(headline(counts, results.remarks)),
        *_cases(results.cases),
        *_unconfirmed(results),
        *([] if counts.ran else [Verdict("Nothing was judged, so nothing conforms.", "bad")]),
        *(Verdict(str(note), "bad" if note.grave else "odd") for note in results.remarks),
    )


def _unconfirmed(results: Results) -> Iterator[Block]:
    """What passes leave open of a checkpoint of one's own."""
    passed = {check.golden for check in results.checks if check.outcome == "pass"}
    found = {(name, g.unconfirmed) for h in results.headers for name, g in h.goldens.items() if g.unconfirmed and name in passed}
    yield from (Paragraph(f"{name}: {sentence}") for name, sentence in sorted(found))


def case_document(result: Result) -> Document:
    """One case."""
    return tuple(_check(check_record(result), activation_records(result)))


def _cases(cases: Sequence[CaseRecords]) -> Iterator[Block]:
    apart, together = _grouped(cases)
    before, repeated = None, _repeated(apart)
    for case in sorted(apart, key=lambda c: ORDER.index(c.check.outcome)):
        alike = repeated.get(id(case), ())
        if not alike or case is alike[0]:
            yield from _check(case.check, case.activations, close=case.check.outcome == before == "skip")
            yield from _further(alike[1:])
        before = case.check.outcome
    yield from chain.from_iterable(map(_passes, together))
    if cases:
        rows = tuple(_row(case.check) for case in sorted(cases, key=lambda c: ORDER.index(c.check.outcome)))
        heads = ("candidate", "outcome", "activations", "median local error")
        yield Folded("every check", (Table(heads, (("", rows),)),), long=True)


def _row(c: CheckRecord) -> tuple[str, ...]:
    median = "" if c.median_rms is None else f"{c.median_rms:.2f} σ"
    tried = searched(c) if c.outcome == "pass" else f"{c.tried} examples"
    return subject(c), c.outcome, f"{c.judged} of {c.activations}" if c.activations else tried if c.tried else "", median


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


def _repeated(cases: Sequence[CaseRecords]) -> dict[int, list[CaseRecords]]:
    """By the id of each case that is an error, the cases of its candidate with the same error: all but its numbers is the same."""
    alike: dict[object, list[CaseRecords]] = {}
    for case in cases:
        if case.check.outcome == "error":
            lines = frozenset(re.sub(r"\d+", "#", line) for line in case.check.reason.splitlines())
            alike.setdefault((case.check.implementation, lines), []).append(case)
    return {id(case): group for group in alike.values() for case in group}


def _further(cases: Sequence[CaseRecords]) -> Iterator[Block]:
    """In which other checks an error that was shown occurs too."""
    if cases:
        plural = "s" if len(cases) > 1 else ""
        where = "; ".join(subject(case.check).removeprefix(f"{case.check.implementation} ") for case in cases)
        yield Paragraph(f"the same error in {len(cases)} more check{plural}: {where}")


def _passes(checks: Sequence[CheckRecord]) -> Iterator[Block]:
    """Checks of one candidate that pass."""
    first, searches = checks[0], [c for c in checks if c.tried]
    candidate = f"{first.implementation} on {first.golden}, {first.device}, {first.dtype}"
    yield Heading(candidate, f"conforms in {len(checks)} checks more", "good")
    yield Paragraph(", ".join(c.check for c in checks))
    if searches:
        worst = max(searches, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        tried = sum(c.tried for c in searches)
        yield Paragraph(f"{tried} examples in {len(searches)} searches{largest}, {duration(checks)}")


def _check(check: CheckRecord, activations: Sequence[ActivationRecord], *, close: bool = False) -> Iterator[Block]:
    yield Heading(subject(check), verdict(check), OUTCOME_TEXT[check.outcome].tone, close)
    failed = [a for a in activations if a.outcome == "fail"]
    if check.reason and (check.outcome != "fail" or check.tried or not failed):
        yield from _reason(check.reason)
    if check.tried and check.counterexample:
        yield Code("\n".join(smallest(check.counterexample)), wrapped=True)
    if failed:
        yield from _failures(failed, activations)
    elif check.outcome == "pass" and check.tried:
        yield Paragraph(f"{searched(check)}, {duration([check])}")
    elif check.outcome == "pass" and check.median_rms is not None:
        yield Paragraph(f"median local error {check.median_rms:.2f} sigma, {duration([check])}")
        if check.excludes:
            yield Lists(tuple((what, tuple(of)) for what, of in exclusion_lists(check.excludes)))
    if check.counterexample:
        yield _script(check.counterexample)


def _reason(reason: str) -> Iterator[Block]:
    """A sentence; a list or a traceback after it stays as it was laid out."""
    first, _, more = reason.rstrip().replace("\r\n", "\n").partition("\n")
    yield Paragraph(first)
    if more:
        yield Code(more)


def _script(found: CounterexampleRecord) -> Block:
    return Folded("a script that shows it", (Code(found.script, "python"),), long=True)


def _failures(failed: Sequence[ActivationRecord], activations: Sequence[ActivationRecord]) -> Iterator[Block]:
    yield Paragraph(f"first origin: {place(failed[0])}")
    worst = _worst(failed)
    yield Table(("origin", "local rms", "max", "limit", "global rms"), (("", tuple(map(_numbers, worst))),))
    if len(failed) > len(worst):
        yield Paragraph(f"and {len(failed) - len(worst)} more in the results file")
    found, layers = mistakes(activations), layers_of(activations)
    yield from (Paragraph(text) for text in _reasons(failed, worst, layers))
    yield Items(tuple(tuple(rendered(finding, layers)) for finding in found[:_WORST]), apart=True)
    if more := len(found[_WORST:]):
        yield Items(((f"and {more} more mistake{'s' if more > 1 else ''} in the results file",),), apart=True)


def _worst(failed: Sequence[ActivationRecord]) -> Sequence[ActivationRecord]:
    """By how many times the limit, worst first; the first origin always among them."""
    worst = sorted(failed, key=lambda a: -(a.excess if a.excess is not None else float("inf")))[:_WORST]
    return worst if any(a is failed[0] for a in worst) else [*worst[:-1], failed[0]]


def _reasons(failed: Sequence[ActivationRecord], worst: Sequence[ActivationRecord], layers: int) -> Iterator[str]:
    """What is wrong with the worst whatever their values are and no finding says, with all others of which the same is said."""
    for reason in dict.fromkeys(a.reason for a in worst if a.reason and not is_unnamed(a)):
        alike = [a for a in failed if a.reason == reason]
        steps = tuple(dict.fromkeys(a.activation for a in alike))
        yield f"{place(alike[0]) if len(alike) == 1 else where(steps, layers)}: {reason}"


def _numbers(a: ActivationRecord) -> tuple[str, ...]:
    local, limit = a.local, a.limits.get("rms") if a.local and a.local.rms is not None else None
    numbers = (local and local.rms, local and local.max, limit, a.overall and a.overall.rms)
    return place(a), *("-" if n is None else f"{n:.3g} σ" for n in numbers)
