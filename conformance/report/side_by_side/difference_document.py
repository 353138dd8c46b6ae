"""Two traces side by side as a document, for a terminal or a pull request, and as rows for a program. Pure functions."""

from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any

from conformance.report.document import Block, Document, Heading, Items, Verdict, tabled
from conformance.report.side_by_side.difference import Difference
from conformance.report.side_by_side.view import DifferenceRow, Side, SideBySide

_HEADS = ("activation", "begins here", "limit", "difference", "|a − b|", "at", "a there", "b there", "")
_SPARE = (("a there", "b there"), ("at",), ("|a − b|",))
NOTHING = "-"


def document(view: SideBySide) -> Document:
    """Where the difference begins, what is wrong with each side, then every activation."""
    verdict = Verdict(view.sentence, "bad" if view.exit_code else "good")
    return tuple(chain([verdict], *map(_side, view.sides), _table(view)))


def _side(side: Side) -> Iterator[Block]:
    yield Heading(f"{side.letter}: {side.name}, {side.setting}", side.verdict, "bad" if side.fails else "good")
    if side.mistakes:
        yield Items(side.mistakes)


def _table(view: SideBySide) -> Iterator[Block]:
    several = len(view.batches) > 1
    yield Heading("activation by activation", "each on its worst batch" if several else "")
    groups = [(group, [_cells(row, several) for row in rows]) for group, rows in groupby(view.rows, lambda row: row.group)]
    yield from tabled(_HEADS, groups, _SPARE)


def _cells(row: DifferenceRow, several: bool) -> tuple[str, ...]:
    d = row.worst
    if d.only:
        return (row.name, *[NOTHING] * 7, row.mark)
    name = f"{row.name} [{d.batch}]" if several else row.name
    errors = map(sigma, (d.local, d.limit, d.accumulated))
    values = (f"{value:.5g}" for value in d.values or ())
    return (name, *errors, f"{d.largest:.3g}", str(list(d.index) or NOTHING), *values, row.mark)


def sigma(value: float | None) -> str:
    """A number of sigma."""
    return NOTHING if value is None else f"{value:.3g} σ"


def rows(view: SideBySide) -> list[dict[str, Any]]:
    """One an activation and batch: texts, then the numbers; null where there is none."""
    return [_row(view, d) for d in view.differences]


def _row(view: SideBySide, d: Difference) -> dict[str, Any]:
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
