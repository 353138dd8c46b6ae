"""The terminal's report: counts first, then candidates, worst first. A pure function of the records."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.records import ActivationRecord, CaseRecords, CheckRecord, Footer, Results
from conformance.report.findings import findings, layers_of
from conformance.report.telling import activation_records, check_record
from conformance.report.words import ORDER, exclusions, headline, place, searched, smallest, subject, told, verdict
from conformance.result import Result

_STYLE = {"pass": "green", "xfail": "green", "skip": "yellow", "xpass": "yellow", "error": "bold magenta"}
_WORST = 5  # lines of failing activations a candidate; the results file has them all


def tell(results: Results, footer: Footer, console: Console) -> None:
    """Print a run."""
    console.print(headline(footer), highlight=False)
    told_apart, together = _grouped(results.cases)
    for case in sorted(told_apart, key=lambda c: ORDER.index(c.check.outcome)):
        console.print()
        _check(case.check, list(case.activations), console)
    for checks in together:
        console.print()
        _passes(checks, console)
    if not footer.ran:
        console.print("\nNothing was judged, so nothing conforms.", style="bold red")


def _grouped(cases: Sequence[CaseRecords]) -> tuple[list[CaseRecords], list[list[CheckRecord]]]:
    """Those that are told one by one, and the passes of each candidate that are told in one paragraph: all but its values."""
    groups: dict[tuple[str, ...], list[CaseRecords]] = {}
    for case in cases:
        c = case.check
        if c.outcome == "pass" and c.check != "values":
            groups.setdefault((c.implementation, c.golden, c.device, c.dtype), []).append(case)
    together = [group for group in groups.values() if len(group) > 1]
    apart = [case for case in cases if not any(case in group for group in together)]
    return apart, [[case.check for case in group] for group in together]


def _passes(checks: list[CheckRecord], console: Console) -> None:
    """Checks of one candidate that pass."""
    first, searched_ones = checks[0], [c for c in checks if c.tried]
    who = f"{first.implementation} on {first.golden}, {first.device}, {first.dtype}"
    console.print(Text(f"{who}: conforms in {len(checks)} checks more", _STYLE["pass"]))
    console.print(Text(f"  {', '.join(c.check for c in checks)}"))
    if searched_ones:
        tried = sum(c.tried for c in searched_ones)
        worst = max(searched_ones, key=lambda c: c.worst or 0.0)
        largest = f", the largest error {worst.worst:.2g} of its limit ({worst.check})" if worst.worst else ""
        seconds = sum(c.seconds for c in checks)
        console.print(f"  {tried} examples in {len(searched_ones)} searches{largest}, {seconds:.1f} s", highlight=False)


def text(result: Result) -> str:
    """One case's report as plain text."""
    console = Console(file=StringIO(), width=120, color_system=None)
    _check(check_record(result), activation_records(result), console)
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined, no-any-return]  # it is a StringIO


def _check(check: CheckRecord, activations: list[ActivationRecord], console: Console) -> None:
    console.print(Text(f"{subject(check)}: {verdict(check)}", _STYLE.get(check.outcome, "bold red")))
    if check.reason and check.outcome != "fail":
        console.print(Text(f"  {check.reason}"))
    failed = [a for a in activations if a.outcome == "fail"]
    if check.outcome == "fail" and (check.tried or not failed):
        console.print(Text(f"  {check.reason}"))
    if check.tried and check.counterexample:
        for line in smallest(check.counterexample):
            console.print(Text(f"  {line}"))
    if failed:
        _failures(failed, activations, console)
    elif check.outcome == "pass" and check.tried:
        console.print(f"  {searched(check)}, {check.seconds:.1f} s", highlight=False)
    elif check.outcome == "pass" and check.median_rms is not None:
        console.print(f"  median local error {check.median_rms:.2f} sigma, {check.seconds:.1f} s", highlight=False)
        for line in exclusions(check.excludes):
            console.print(Text(f"  {line}"))


def _failures(failed: list[ActivationRecord], activations: list[ActivationRecord], console: Console) -> None:
    console.print(Text(f"  first origin: {place(failed[0])}"))
    # By how many times the limit, worst first; the first origin always among them.
    worst = sorted(failed, key=lambda a: -(a.excess if a.excess is not None else float("inf")))
    if failed[0] not in worst[:_WORST]:
        worst = [*worst[: _WORST - 1], failed[0], *(a for a in worst[_WORST - 1 :] if a is not failed[0])]
    table = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("origin", "local rms", "max", "limit", "global rms"):
        table.add_column(column, justify="left" if column == "origin" else "right", overflow="fold")
    for a in worst[:_WORST]:
        limit = a.limits.get("rms") if a.local and a.local.rms is not None else None
        numbers = (a.local.rms if a.local else None, a.local.max if a.local else None, limit, a.overall.rms if a.overall else None)
        table.add_row(Text(place(a)), *(_sigma(n) for n in numbers))
    console.print(table)
    if len(worst) > _WORST:
        console.print(f"  and {len(worst) - _WORST} more in the results file", highlight=False)
    for a in worst[:_WORST]:
        if a.reason:
            console.print(Text(f"  {place(a)}: {a.reason}"))
    mistakes = findings(activations)
    for finding in mistakes[:_WORST]:
        console.print()
        for line, indent in zip(told(finding, layers_of(activations)), ("  ", *("    ",) * 9), strict=False):
            console.print(Padding(Text(line), (0, 0, 0, len(indent)), expand=False))
    if len(mistakes) > _WORST:
        console.print(f"  and {len(mistakes) - _WORST} more mistakes in the results file", highlight=False)


def _sigma(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} σ"
