"""Document of two traces side by side. Pure functions."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from conformance.checks.trace import Trace
from conformance.goldens.custom_golden import PREFIX
from conformance.model.activations import placed, table
from conformance.report.coverage_sentences import number
from conformance.report.difference import Difference
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import Axis, Points, axis_of, sigma
from conformance.report.finding_sentences import lines, where
from conformance.report.findings import mistakes
from conformance.results.records import ActivationRecord

Records = Sequence[ActivationRecord]


def document(found: Sequence[Difference], traces: tuple[Trace, Trace], judged: tuple[Records, Records]) -> Document:
    """Return the document: the steps at which the difference begins, the mistakes of each side, then a row for each activation.

    `found` are the differences of `compare`, `judged` the records of each trace. The data for programs are all differences.
    """
    first, layers = traces[0], traces[0].architecture.num_hidden_layers
    axis = axis_of(value for d in found for value in (d.local, d.accumulated, d.limit))
    by_name = {name: of for name in table(first.architecture) if (of := [d for d in found if d.activation == name])}
    begins = where(list(dict.fromkeys(d.activation for d in found if d.begins)), layers)
    rows: list[Row] = []
    for group, of_group in groupby(by_name, lambda name: placed(name)[0]):
        rows += [(group,), *(_row(by_name[name], axis) for name in of_group)]
    names = [t.name for t in traces]
    names = names if names[0] != names[1] else [f"{name} ({letter})" for name, letter in zip(names, "AB", strict=True)]
    view = {
        "names": names,
        "network": Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden,
        "both": len({d.activation for d in found if not d.only}),
        "begins": begins,
        "sides": [_side(letter, t, records, layers) for letter, t, records in zip("AB", traces, judged, strict=True)],
        "several": len({d.batch for d in found}) > 1,
        "rows": rows,
        "plot": f"○ global ● local, {axis.reach}",
    }
    title = f"{' and '.join(names)}, activation by activation"
    return Document("difference", view, title, "bad" if begins else "good", list(map(asdict, found)))


def _side(letter: str, trace: Trace, records: Records, layers: int) -> tuple[str, Span, int, list[list[str]]]:
    """Return of a trace its name and setting, its verdict, the number of activations that it exposes, and its mistakes in words."""
    every = [lines(finding) for finding in mistakes(records)]
    failed = where(list(dict.fromkeys(r.activation for r in records if r.outcome == "fail")), layers)
    wrong = number(len(every), "mistake") if every else f"fails at {failed}" if failed else ""
    verdict = Span(wrong or "no error when judged alone", "bad" if wrong else "good")
    exposed = len({name for found in trace.activations.values() for name in found})
    return f"{letter}: {trace.name}, {trace.device}, {trace.dtype}", verdict, exposed, every


def _row(found: Sequence[Difference], axis: Axis) -> Row:
    """Return the row of an activation, with the numbers of the batch where the difference is largest."""
    d = max(found, key=lambda d: (not d.only, d.excess, d.accumulated or 0.0))
    batch = f" [{d.batch}]" if len(found) > 1 and not d.only else ""
    name = Span(f"{placed(d.activation)[1]}{batch}", "quiet" if d.only else "bad" if d.begins else "")
    if d.only:
        return name, Points(None, None), f"only {d.only}", *["-"] * 7
    points = Points(axis.at(d.accumulated), axis.at(d.local), axis.at(d.limit))
    local = ("differs" if d.begins else "exact") if d.local is None else sigma(d.local)
    numbers = (local, sigma(d.limit), sigma(d.accumulated), f"{d.largest:.3g}", str(list(d.index) or "-"))
    return name, points, "; ".join(_marks(d, found)), *numbers, *(f"{value:.5g}" for value in d.values or ())


def _marks(d: Difference, found: Sequence[Difference]) -> Iterator[str]:
    """Yield where the difference begins, and the largest element if the RMS is within its limit."""
    if not d.begins:
        return
    yield f"begins in {sum(other.begins for other in found)} of {len(found)}" if len(found) > 1 else "begins here"
    if d.local is not None and d.limit is not None and d.local <= d.limit:
        yield f"max {d.local_max:.3g} σ, limit {d.max_limit:.3g} σ"
