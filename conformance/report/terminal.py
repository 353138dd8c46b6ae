"""The terminal's report: counts first, then candidates, worst first."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.faults import BY_NAME
from conformance.records import Footer, Sensitivity
from conformance.report.telling import excludes
from conformance.run import Result, median_rms

_ORDER = ("error", "crash", "fail", "skip", "pass")
_STYLE = {"pass": "green", "skip": "yellow", "fail": "bold red", "crash": "bold red", "error": "bold magenta"}
_WORST = 5  # lines of failing activations a candidate; the results file has them all


def tell(results: Iterable[Result], footer: Footer, console: Console) -> None:
    """Print a run."""
    results = sorted(results, key=lambda r: _ORDER.index(r.outcome))
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(footer.outcomes.items()))
    console.print(f"ran {footer.ran} / {footer.declared} declared: {counts or 'nothing'}", highlight=False)
    for result in results:
        console.print()
        _pair(result, console)
    if not footer.ran:
        console.print("\nNothing was judged, so nothing conforms.", style="bold red")


def _pair(result: Result, console: Console) -> None:
    verb = {"pass": "conforms", "fail": "does not conform", "skip": "skipped"}.get(result.outcome, result.outcome)
    coverage = f", {result.judged} of {len(result.verdicts)} activations" if result.verdicts else ""
    console.print(Text(f"{result.pair}: {verb}{coverage}", _STYLE[result.outcome]))
    if result.outcome in ("skip", "error", "crash"):
        console.print(Text(f"  {result.reason}"))
    if not result.ran:
        return
    rms = median_rms(result.verdicts)
    if result.outcome == "pass":
        console.print(f"  median local error {rms:.2f} sigma, {result.seconds:.1f} s", highlight=False)
        _exclusions(excludes(result.verdicts), console)
    elif result.outcome == "fail":
        _failures(result, console)


def _exclusions(told: list[Sensitivity], console: Console) -> None:
    """What the pass excludes, and what it cannot."""
    seen = [s.fault for s in told if s.separable == s.places]
    if seen:
        console.print(Text(f"  excluded at every place: {', '.join(sorted(seen))}"))
    for s in told:
        if s.smallest is not None and s.separable:
            console.print(Text(f"  at the best place a wrong {s.parameter} shows from {s.smallest:.2g}"))
    for s in told:
        if s.separable < s.places:
            console.print(
                Text(f"  {s.fault}: not separable at {s.places - s.separable} of {s.places} places, "
                     f"expected z = {s.expected_z:.2g} at {s.weakest}")
            )  # fmt: skip


def _failures(result: Result, console: Console) -> None:
    failed = [v for v in result.verdicts if v.outcome == "fail"]
    console.print(f"  first origin: {failed[0].activation}" if failed else f"  {result.reason}", highlight=False)
    # From the origins on, worst first.
    worst = sorted(failed, key=lambda v: -(v.local.excess if v.local else float("inf")))
    table = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("origin", "local rms", "max", "limit", "global rms"):
        table.add_column(column, justify="left" if column == "origin" else "right", overflow="fold")
    for v in worst[:_WORST]:
        local, overall = v.local, v.overall
        table.add_row(
            v.activation,
            _sigma(local.error.rms if local else None),
            _sigma(local.error.max if local else None),
            _sigma(local.rms_threshold if local and local.error.rms is not None else None),
            _sigma(overall.rms if overall else None),
        )
    console.print(table)
    for v in worst[:_WORST]:
        if v.reason:
            console.print(Text(f"  {v.activation}: {v.reason}"))
        for f in v.local.named if v.local else ():
            estimate = f", {f.parameter} about {f.estimate:.2g}" if f.estimate is not None else ""
            console.print(Text(f"  {f.step}: {BY_NAME[f.name].sentence} (amplitude {f.amplitude:.3f}, z = {f.z:.3g}{estimate})"))
    if len(worst) > _WORST:
        console.print(f"  and {len(worst) - _WORST} more in the results file", highlight=False)


def _sigma(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} σ"
