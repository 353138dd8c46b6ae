"""Document of two traces side by side, and rows for programs. Pure functions."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from conformance.report.axis import Axis, axis_of, sigma
from conformance.report.difference.difference import Difference
from conformance.report.difference.difference_view import DifferenceRow, DifferenceView, Side, rows_of
from conformance.report.document import (
    Abridged,
    Block,
    Cell,
    Column,
    Document,
    Folded,
    Heading,
    Headline,
    Items,
    Lists,
    Paragraph,
    Points,
    Row,
    Section,
    Table,
    tabled,
)

NOTHING = "-"
SHORT = (
    "local rms: what the step itself adds to the difference; global rms: A − B, with all that earlier steps added; both in σ, the "
    "standard deviation of both roundings. A step is an origin if local rms or max, its largest element, exceeds its limit, or if "
    "it rounds nothing and differs."
)
BUDGET = 1_400  # maximum number of table rows on a page
_READING = {
    "local rms": "The part of the difference that was not there before this step, in σ: what the two compute differently from "
    "their own inputs. Beyond its limit, the green band, it is more than rounding explains, and the step is an origin.",
    "global rms": "A − B, in units of the σ that rounding has accumulated in both since the token ids. Every step after the "
    "one at which it begins passes it on.",
    "|A − B|, at": "The largest absolute difference, the element that has it, and the values of A and B there.",
    "exact": "A step that rounds nothing, a look-up or a copy: any difference at all begins there.",
    "only A, only B": "The other does not expose it; it is judged as part of the next step that both expose.",
}


def document(view: DifferenceView) -> Document:
    """Return the document: steps at which the difference begins, mistakes of each side, then every activation."""
    blocks = (
        Headline(view.sentence, "bad" if view.exit_code else "good"),
        *map(_side, view.sides),
        *_tables(view),
        Abridged((Heading("How to read this", level=2), Lists.of_terms(_READING)), (Paragraph(SHORT, "quiet"),)),
    )
    return Document(f"{' and '.join(view.names)}, activation by activation", blocks)


def _side(side: Side) -> Section:
    tone = "bad" if side.fails else "good"
    heading = Heading(f"{side.letter}: {side.name}, {side.setting}", side.verdict, tone, level=2)
    exposed = Abridged((Paragraph(f"exposes {side.shown} activations", "quiet"),))
    return Section((heading, exposed, *([Items(side.mistakes)] if side.mistakes else [])), tone)


def _tables(view: DifferenceView) -> Iterator[Block]:
    """Yield the table of activations, each on its worst batch, and on a page a table for each batch, up to `BUDGET` rows."""
    axis = axis_of(value for d in view.differences for value in (d.local, d.accumulated, d.limit))
    several = len(view.batches) > 1
    yield Heading("activation by activation", "each on its worst batch" if several else "", level=2)
    yield from _table(view.rows, axis, several=several)
    if several:
        budget, folded = BUDGET - len(view.rows), []
        for batch in view.batches:
            rows = rows_of(view, batch)
            budget -= len(rows)
            if budget < 0:
                break
            folded.append(Folded(batch, tuple(_table(rows, axis))))
        yield Abridged((Heading("every batch, worst first", level=2), *folded, *_left_out(view.batches[len(folded) :])))


def _left_out(batches: tuple[str, ...]) -> Iterator[Block]:
    if batches:
        yield Paragraph(f"Not shown, so that the page stays small: {len(batches)} more batches. JSON has all of them.", "quiet")


def _table(found: Iterable[DifferenceRow], axis: Axis, *, several: bool = False) -> Iterator[Table]:
    there = (Column("at", spare=2), Column("A there", spare=3), Column("B there", spare=3))
    errors = (Column("local rms"), Column("limit"), Column("global rms"), Column("|A − B|", spare=1))
    plot = Column("○ global ● local", ticks=axis.ticks)
    columns = ("activation", plot, *errors, *there, Column("origin", is_text=True))
    yield from tabled(
        columns, [(group, [_row(r, axis, several) for r in rows]) for group, rows in groupby(found, attrgetter("group"))], None
    )


def _row(row: DifferenceRow, axis: Axis, several: bool) -> Row:
    d = row.worst
    if d.only:
        return Row((row.name, Points(()), *[NOTHING] * 7, row.mark), "quiet")
    name = f"{row.name} [{d.batch}]" if several else row.name
    points = Points((axis.at(d.accumulated), axis.at(d.local)), axis.at(d.limit))
    errors = (
        ("differs" if d.begins else "exact") if d.local is None else sigma(d.local),
        *map(sigma, (d.limit, d.accumulated)),
    )
    values = (f"{value:.5g}" for value in d.values or ())
    cells: tuple[Cell, ...] = (name, points, *errors, f"{d.largest:.3g}", str(list(d.index) or NOTHING), *values, row.mark)
    return Row(cells, "bad" if d.begins else "")


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
