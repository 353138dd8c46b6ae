"""What changed between two runs as a document, for a terminal or a pull request. Pure functions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from conformance.report.changes.between import KINDS, CaseChange, Changes, Kind
from conformance.report.changes.words import (
    TONES,
    by_activation,
    counts,
    coverage,
    figures,
    headline,
    is_better,
    mistakes,
    moved,
    number,
    outcome,
    title,
    tone,
    why,
)
from conformance.report.document import Block, Document, Folded, Heading, Items, Paragraph, Verdict, tabled

_HEADS = ("activation", "batches", "outcome", "local rms", "max", "limit", "what it says")


def document(changes: Changes) -> Document:
    """The verdict, what may explain it, then the cases, worst first; what is better can be left unread."""
    return tuple(chain(_beside(changes), _cases(changes), _better(changes), _unchanged(changes)))


def _beside(changes: Changes) -> Iterator[Block]:
    yield Verdict(headline(changes), tone(changes))
    yield Paragraph(f"from {changes.names[0]} to {changes.names[1]}")
    if changes.environment:
        differing = "; ".join(f"{d.what} {d.before} → {d.after}" for d in changes.environment)
        yield Paragraph(f"what may explain it: {differing}")
    yield from (Paragraph(note, "odd") for note in changes.notes)


def _cases(changes: Changes) -> Iterator[Block]:
    for case in changes.cases:
        if case.kinds and not is_better(case):
            yield _heading(case)
            yield from _details(case, [kind for kind in KINDS if kind != "better"])


def _better(changes: Changes) -> Iterator[Block]:
    """Cases in which nothing is worse, whole; of the others what is better."""
    cases = [case for case in changes.cases if "better" in case.kinds]
    if cases:
        shown = [(case, KINDS if is_better(case) else ("better",)) for case in cases]
        blocks = tuple(block for case, kinds in shown for block in (_heading(case), *_details(case, kinds)))
        yield Folded(f"better: {', '.join(counts(changes, ['better']))}", blocks)


def _heading(case: CaseChange) -> Heading:
    verdict = ", ".join(part for part in (outcome(case), coverage(case)) if part)
    return Heading(title(case), verdict, TONES[case.kind] if case.kind else "")


def _details(case: CaseChange, kinds: Sequence[Kind]) -> Iterator[Block]:
    if reason := why(case):
        yield Paragraph(reason)
    if found := mistakes(case, kinds):
        yield Items(tuple(found))
    groups = [(kind, [(row.name, row.batches, *figures(row.worst)) for row in by_activation(case, kind)]) for kind in kinds]
    yield from tabled(_HEADS, groups, spare=[["max"]])
    if case.moved and "changed" in kinds:
        yield Paragraph(moved(case.moved, case.compared))


def _unchanged(changes: Changes) -> Iterator[Block]:
    cases = [case for case in changes.cases if not case.kinds]
    if cases:
        outcomes = Counter(case.record.outcome for case in cases)
        parts = [", ".join(f"{n} {what}" for what, n in outcomes.most_common())]
        if n_moved := sum(case.moved for case in cases):
            parts.append(moved(n_moved, sum(case.compared for case in cases)))
        yield Heading(f"no change in {number(len(cases), 'check')}", "; ".join(parts))
