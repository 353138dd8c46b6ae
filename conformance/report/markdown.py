"""A run in Markdown: for a pull request or a summary of a CI job. A pure function of the records."""

import re
from collections.abc import Sequence

from conformance.report.findings import UNNAMED, layers_of
from conformance.report.printable import printable, printable_lines
from conformance.report.words import exclusions, headline, mistakes, place, rendered, searched, smallest, subject, verdict
from conformance.results.outcomes import ORDER
from conformance.results.records import ActivationRecord, CheckRecord, CounterexampleRecord, Note, Results
from conformance.results.to_records import footer

_SPECIAL = re.compile(r"[\\`*_\[\]|~$]")
_FIRST = re.compile(r"^(\d*)([#>+=.)-])")  # of a heading, a quotation or a list, where a line begins with it


def markdown(results: Results) -> str:
    """Counts, notes, a table of checks, worst first, then each failure's mistakes and origins, and what each pass excludes."""
    cases = sorted(results.cases, key=lambda c: ORDER.index(c.check.outcome))
    lines = [f"**{headline(results.footer or footer(results.checks), results.remarks)}**", ""]
    if results.remarks:
        lines += [*(_note(note) for note in results.remarks), ""]
    lines += ["| candidate | outcome | activations | median local error |", "| --- | --- | --- | --- |"]
    lines += [_summary(case.check) for case in cases]
    for case in cases:
        if details := _details(case.check, case.activations):
            lines += ["", f"### {cell(subject(case.check))}: {verdict(case.check)}", "", *details]
    return "\n".join(lines) + "\n"


def _note(note: Note) -> str:
    kind = f"**{note.kind}**" if note.grave else note.kind
    return f"- {kind}: {cell(note.text)}"


def _summary(c: CheckRecord) -> str:
    median = "" if c.median_rms is None else f"{c.median_rms:.2f} σ"
    tried = searched(c) if c.outcome == "pass" else f"{c.tried} examples"
    seen = f"{c.judged} of {c.activations}" if c.activations else tried if c.tried else ""
    return f"| {cell(subject(c))} | {c.outcome} | {seen} | {median} |"


def _details(c: CheckRecord, activations: Sequence[ActivationRecord]) -> list[str]:
    lines = _reason(c.reason)
    failed = [a for a in activations if a.outcome == "fail"]
    if failed:
        layers = layers_of(activations)
        lines += ["", *(f"- {cell('; '.join(rendered(finding, layers)))}" for finding in mistakes(activations))]
        lines += ["", "| origin | local rms | limit | what it is |", "| --- | --- | --- | --- |", *map(_row, failed)]
    if c.outcome == "pass":
        lines += [f"- {cell(line)}" for line in exclusions(c.excludes)] if c.excludes else []
    return lines + (_again(c, c.counterexample) if c.counterexample else [])


def _reason(reason: str) -> list[str]:
    """A sentence; what has several lines, a list or a traceback, as it was laid out."""
    lines = reason.rstrip().splitlines()
    return _fenced("text", reason.rstrip()) if len(lines) > 1 else [cell(line) for line in lines]


def _again(c: CheckRecord, found: CounterexampleRecord) -> list[str]:
    """How to see it again: folded, since it is long."""
    batch = _fenced("text", "\n".join(smallest(found))) if c.tried else []
    script = _fenced("python", found.script.rstrip())
    return ["", "<details><summary>a script that shows it</summary>", "", *batch, *script, "", "</details>"]


def _row(a: ActivationRecord) -> str:
    rms = f"{a.local.rms:.3g} σ" if a.local and a.local.rms is not None else "-"
    limit = f"{a.limits['rms']:.3g} σ" if a.local and a.local.rms is not None and "rms" in a.limits else "-"
    what = ", ".join(f.name for f in a.faults) or a.reason or UNNAMED
    return f"| {cell(place(a))} | {rms} | {limit} | {cell(what)} |"


def _fenced(language: str, text: str) -> list[str]:
    """A block of code: its fence is longer than any that the text has."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [f"{fence}{language}", *printable_lines(text), fence]


def cell(text: str) -> str:
    """Text that cannot break out of a table's cell, nor be read as HTML or as markup."""
    flat = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return _FIRST.sub(r"\1\\\2", _SPECIAL.sub(lambda c: "&#96;" if c[0] == "`" else f"\\{c[0]}", flat))
