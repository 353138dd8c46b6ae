"""Document of two traces side by side, and rows for programs. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from conformance.checks.trace import Trace
from conformance.goldens.custom_golden import PREFIX
from conformance.model.activations import placed, table
from conformance.report.axis import Axis, axis_of, sigma
from conformance.report.coverage_sentences import rendered
from conformance.report.difference import Difference
from conformance.report.document import Document, Row, Span
from conformance.report.drawings import Points
from conformance.report.finding_sentences import where
from conformance.report.findings import findings
from conformance.results.records import ActivationRecord

Records = Sequence[ActivationRecord]
BUDGET = 1_400  # maximum number of table rows on a page


@dataclass(frozen=True)
class Side:
    """One of the two traces, `A` or `B`, judged alone.

    Attributes:
        setting: device and format.
        exposed: number of activations that the trace exposes.
        mistakes: its mistakes, each as a sentence followed by details.
        fails: short description of the activations that fail; empty if none fails.
    """

    letter: str
    name: str
    setting: str
    exposed: int
    mistakes: list[list[str]]
    fails: str

    @property
    def verdict(self) -> Span:
        """The verdict on this trace alone; if it has mistakes, which are listed, their number."""
        if self.mistakes:
            return Span(f"{len(self.mistakes)} mistake{'s' * (len(self.mistakes) > 1)}", "bad")
        return Span(f"fails at {self.fails}", "bad") if self.fails else Span("no error when judged alone", "good")


@dataclass(frozen=True)
class DifferenceRow:
    """The differences at one activation.

    Attributes:
        group, name: part of the network that the activation belongs to, and name of the activation within that part.
        worst: difference on the batch where it is worst.
        begins, batches: number of batches on which a difference beyond rounding begins at this activation, of how many.
    """

    group: str
    name: str
    worst: Difference
    begins: int
    batches: int

    @property
    def mark(self) -> str:
        """The remark on this row: `only A`, `only B`, `begins here` or `begins in n of m`, or the empty text.

        If the RMS is within its limit, the remark also has the largest element and its limit.
        """
        d = self.worst
        if d.only:
            return f"only {d.only}"
        if not d.begins:
            return ""
        times = f"begins in {self.begins} of {self.batches}" if self.batches > 1 else "begins here"
        within = d.local is not None and d.limit is not None and d.local <= d.limit
        return times + (f": max {d.local_max:.3g} σ, limit {d.max_limit:.3g} σ" if within else "")


@dataclass(frozen=True)
class DifferenceView:
    """All differences between two traces.

    Attributes:
        network: name of the golden or checkpoint that both ran on.
        batches: names of the batches, worst first.
        differences: differences for each activation and batch, as computed.
        rows: one row for each activation, in the order of computation.
        begins: short description of the activations at which a difference beyond rounding begins; empty if there is none.
    """

    network: str
    sides: tuple[Side, Side]
    batches: tuple[str, ...]
    differences: tuple[Difference, ...]
    rows: tuple[DifferenceRow, ...]
    begins: str

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two traces, followed by their letters if the names are equal."""
        a, b = self.sides
        return (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")

    @property
    def verdict(self) -> Span:
        """One sentence with the subject of the comparison and the steps at which the difference begins."""
        both = sum(not row.worst.only for row in self.rows)
        begins = f"the difference begins at {self.begins}" if self.begins else "no difference beyond rounding"
        return Span(f"{' and '.join(self.names)} on {self.network}, {both} activations in common: {begins}", _tone(self.begins))

    @property
    def exit_code(self) -> int:
        """The exit code: 1 if a difference beyond rounding begins at any activation, else 0."""
        return int(bool(self.begins))


def _tone(begins: str) -> str:
    return "bad" if begins else "good"


def difference_view(
    differences: Iterable[Difference], traces: tuple[Trace, Trace], judged: tuple[Records, Records]
) -> DifferenceView:
    """Return the view of two traces, given the differences from `compare`, and the records of each trace from `judged`."""
    found = tuple(differences)
    first, layers = traces[0], traces[0].architecture.num_hidden_layers
    sides = tuple(_side(letter, t, records, layers) for letter, t, records in zip("AB", traces, judged, strict=True))
    network = Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden
    begins = dict.fromkeys(d.activation for d in found if d.begins)
    order = table(first.architecture)
    worst = sorted({d.batch for d in found}, key=lambda batch: max(_size(d) for d in found if d.batch == batch), reverse=True)
    return DifferenceView(
        network, (sides[0], sides[1]), tuple(worst), found, tuple(_rows(found, order)), where(list(begins), layers)
    )


def _side(letter: str, trace: Trace, records: Records, layers: int) -> Side:
    mistakes = [rendered(finding, layers) for finding in findings(records)]
    failed = dict.fromkeys(r.activation for r in records if r.outcome == "fail")
    exposed = {name for found in trace.activations.values() for name in found}
    return Side(letter, trace.name, f"{trace.device}, {trace.dtype}", len(exposed), mistakes, where(list(failed), layers))


def _rows(found: Sequence[Difference], order: Iterable[str]) -> Iterator[DifferenceRow]:
    """Yield one row for each activation, in the order of computation."""
    for name in order:
        theirs = [d for d in found if d.activation == name]
        if theirs:
            yield DifferenceRow(*placed(name), max(theirs, key=_size), sum(d.begins for d in theirs), len(theirs))


def _size(d: Difference) -> tuple[bool, float, float]:
    return not d.only, d.excess, d.accumulated or 0.0


def document(view: DifferenceView) -> Document:
    """Return the document: steps at which the difference begins, mistakes of each side, then every activation."""
    axis = axis_of(value for d in view.differences for value in (d.local, d.accumulated, d.limit))
    several, budget, folded = len(view.batches) > 1, BUDGET - len(view.rows), []
    for batch in view.batches if several else ():
        rows = list(_rows([d for d in view.differences if d.batch == batch], [row.worst.activation for row in view.rows]))
        budget -= len(rows)
        if budget < 0:
            break
        folded.append((batch, _table(rows, axis)))
    values = {
        "view": view,
        "several": several,
        "rows": _table(view.rows, axis, several=several),
        "batches": folded,
        "left_out": len(view.batches) - len(folded) if several else 0,
        "plot": f"○ global ● local, {axis.reach}",
    }
    return Document("difference", values, f"{' and '.join(view.names)}, activation by activation")


def _table(found: Iterable[DifferenceRow], axis: Axis, *, several: bool = False) -> list[Row]:
    return [
        cells
        for group, rows in groupby(found, attrgetter("group"))
        for cells in ((group,), *(_row(r, axis, several=several) for r in rows))
    ]


def _row(row: DifferenceRow, axis: Axis, *, several: bool) -> Row:
    d = row.worst
    name = Span(f"{row.name} [{d.batch}]" if several and not d.only else row.name, "quiet" if d.only else "bad" if d.begins else "")
    if d.only:
        return name, Points(None, None), row.mark, *["-"] * 7
    points = Points(axis.at(d.accumulated), axis.at(d.local), axis.at(d.limit))
    local = ("differs" if d.begins else "exact") if d.local is None else sigma(d.local)
    values = [f"{value:.5g}" for value in d.values or ()]
    numbers = (local, sigma(d.limit), sigma(d.accumulated), f"{d.largest:.3g}")
    return name, points, row.mark, *numbers, str(list(d.index) or "-"), *values


def rows(view: DifferenceView) -> list[dict[str, Any]]:
    """Return one row for each activation and batch: texts, then the numbers, which are None if not available."""
    return [_record(view, d) for d in view.differences]


def _record(view: DifferenceView, d: Difference) -> dict[str, Any]:
    a, b = d.values or (None, None)
    only = view.sides["AB".index(d.only)].name if d.only else ""
    return {
        "activation": d.activation if len(view.batches) == 1 else f"{d.activation} [{d.batch}]",
        "largest": f"only {only}" if d.only else f"{d.largest:.3g} at {list(d.index)}",
        "difference": sigma(d.accumulated),
        "begins here": sigma(d.local),
        "limit": sigma(d.limit),
        "": "begins here" if d.begins else "",
        "batch": d.batch,
        "only": d.only,
        "begins": d.begins,
        "largest_difference": None if d.only else d.largest,
        "index": list(d.index),
        "a": a,
        "b": b,
        "accumulated_rms": d.accumulated,
        "local_rms": d.local,
        "local_max": d.local_max,
        "limits": {"rms": d.limit, "max": d.max_limit},
    }
