"""A run in Markdown: for a pull request or a summary of a CI job. A pure function of the records."""

import re

from conformance.records import ActivationRecord, CheckRecord, Results
from conformance.report.findings import UNNAMED, findings, layers_of
from conformance.report.telling import footer
from conformance.report.words import ORDER, exclusions, headline, place, searched, smallest, subject, told, verdict


def markdown(results: Results) -> str:
    """Counts, a table of checks, worst first, then each failure's origins and what each pass excludes."""
    checks = sorted(results.checks, key=lambda c: ORDER.index(c.outcome))
    lines = [f"**{headline(results.footer or footer(results.checks))}**", ""]
    if results.missing:
        lines += [f"Missing of this run: shard {', '.join(results.missing)}.", ""]
    elif not results.complete:
        lines += ["This run was cut short: it has no footer.", ""]
    lines += ["| candidate | outcome | activations | median local error |", "| --- | --- | --- | --- |"]
    for c in checks:
        median = "" if c.median_rms is None else f"{c.median_rms:.2f} σ"
        seen = f"{c.judged} of {c.activations}" if c.activations else f"{c.tried} examples"
        lines.append(f"| {_cell(subject(c))} | {c.outcome} | {seen} | {median} |")
    for case in sorted(results.cases, key=lambda c: ORDER.index(c.check.outcome)):
        lines += _details(case.check, list(case.activations))
    return "\n".join(lines) + "\n"


def _details(c: CheckRecord, activations: list[ActivationRecord]) -> list[str]:
    lines = ["", f"### {_cell(subject(c))}: {verdict(c)}", ""]
    if c.reason:
        fence = "`" * (max((len(run) for run in re.findall("`+", c.reason)), default=2) + 1)
        lines += [f"{fence if len(fence) > 2 else '```'}text", c.reason, fence if len(fence) > 2 else "```", ""]
    if c.counterexample:
        lines += ["```text", *smallest(c.counterexample), "```", "```python", c.counterexample.script.rstrip(), "```", ""]
    failed = [a for a in activations if a.outcome == "fail"]
    if failed:
        layers = layers_of(activations)
        lines += [f"- {_cell('; '.join(told(finding, layers)))}" for finding in findings(activations)]
        lines += ["", "| origin | local rms | limit | what it is |", "| --- | --- | --- | --- |"]
        lines += [_row(a) for a in failed]
    elif c.outcome == "pass" and c.tried:
        lines.append(f"- {searched(c)}")
    elif c.outcome == "pass":
        lines += [f"- {_cell(line)}" for line in exclusions(c.excludes)]
    return lines


def _row(a: ActivationRecord) -> str:
    rms = f"{a.local.rms:.3g} σ" if a.local and a.local.rms is not None else "-"
    limit = f"{a.limits['rms']:.3g} σ" if a.local and a.local.rms is not None else "-"
    what = ", ".join(f.name for f in a.faults) or a.reason or UNNAMED
    return f"| {_cell(place(a))} | {rms} | {limit} | {_cell(what)} |"


def _cell(text: str) -> str:
    """Text that cannot break out of a table's cell, nor be read as HTML."""
    for special, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "&#96;"), ("_", "\\_"), ("*", "\\*")):
        text = text.replace(special, safe)
    return " ".join(text.split())
