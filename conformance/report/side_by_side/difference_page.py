"""Two traces side by side as a page: what begins at every activation and what has accumulated, on one axis. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from conformance.report.html.axis import Axis, axis_of, sigma
from conformance.report.html.page import page
from conformance.report.side_by_side.view import DifferenceRow, SideBySide, rows_of

BUDGET = 1_400  # rows of a page


@dataclass(frozen=True)
class DifferenceLine:
    """One activation: what is reported of it, and where it stands on the axis, in percent."""

    name: str
    mark: str
    note: str
    local: str
    limit: str
    accumulated: str
    largest: str
    a: str
    b: str
    band: float | None
    local_at: float | None
    accumulated_at: float | None
    begins: bool
    only: str


@dataclass(frozen=True)
class DifferenceTable:
    """The activations of a batch, or of all of them, by the part of the network."""

    title: str
    groups: tuple[tuple[str, tuple[DifferenceLine, ...]], ...]


def side_by_side_page(view: SideBySide) -> str:
    """The whole page."""
    axis = axis_of(value for d in view.differences for value in (d.local, d.accumulated, d.limit))
    several = len(view.batches) > 1
    tables, left = _batches(view, axis) if several else ((), ())
    return page(
        "differences.html",
        f"{' and '.join(view.names)}, activation by activation",
        view=view,
        table=_table("on the batch on which it is worst" if several else "", view.rows, axis, several=several),
        tables=tables,
        left_out=left,
        ticks=axis.ticks,
    )


def _batches(view: SideBySide, axis: Axis) -> tuple[Sequence[DifferenceTable], Sequence[str]]:
    """The tables of as many batches as a page may hold, worst first, and the names of the others."""
    budget, tables = BUDGET - len(view.rows), []
    for batch in view.batches:
        rows = rows_of(view, batch)
        budget -= len(rows)
        if budget < 0:
            break
        tables.append(_table(batch, rows, axis))
    return tables, view.batches[len(tables) :]


def _table(title: str, rows: Iterable[DifferenceRow], axis: Axis, *, several: bool = False) -> DifferenceTable:
    groups = groupby(rows, lambda row: row.group)
    return DifferenceTable(
        title, tuple((group, tuple(_line(row, axis, several=several) for row in found)) for group, found in groups)
    )


def _line(row: DifferenceRow, axis: Axis, *, several: bool) -> DifferenceLine:
    d = row.worst
    exact = not d.only and d.local is None
    values = [f"{value:.4g}" for value in d.values] if d.values else ["", ""]
    return DifferenceLine(
        row.name,
        row.mark,
        d.batch if several and not d.only else "",
        ("differs" if d.begins else "exact") if exact else _sigma(d.local),
        _sigma(d.limit),
        _sigma(d.accumulated),
        "" if d.only else f"{d.largest:.3g}{f' at {list(d.index)}' if d.index else ''}",
        values[0],
        values[1],
        axis.at(d.limit),
        axis.at(d.local),
        axis.at(d.accumulated),
        d.begins,
        d.only,
    )


def _sigma(value: float | None) -> str:
    return f"{sigma(value)} σ" if value is not None else ""
