"""A report as blocks: values, which `terminal`, `markdown` and `html` render each in its own way.

To add a block: give it a dataclass here, and a case in the three renderers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

ROWS = 20  # of a group that a reader looks at; JSON and a page have all of them


@dataclass(frozen=True)
class TextSpan:
    """A text with a tone (`good`, `bad`, `odd`, `quiet` or none).

    Attributes:
        link: the id of the section that it leads to, on a page.
        note: a remark on it, in smaller type.
    """

    text: str
    tone: str = ""
    link: str = ""
    note: str = ""

    def __str__(self) -> str:
        """For renderers without links."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Points:
    """Points on the axis of a column, in percent of its width, the last one filled; None where there is none.

    Attributes:
        band: the end of what is allowed, which begins with the axis.
        joined: whether a line joins them.
    """

    at: tuple[float | None, ...]
    band: float | None = None
    joined: bool = False


@dataclass(frozen=True)
class Ranges:
    """Of each series its least value, mean − deviation, mean + deviation and largest value, in percent of the width, zero at 50."""

    bars: tuple[tuple[float, float, float, float] | None, ...]


@dataclass(frozen=True)
class HeatStrip:
    """A level of heat a slice, 0 to 5; None where nothing is known. `title` says it in words."""

    levels: tuple[int | None, ...]
    title: str


Plot = Points | Ranges | HeatStrip
Cell = str | TextSpan | Plot


@dataclass(frozen=True)
class Histogram:
    """Counts, the line of counts that are expected, and labels below: where, as a fraction of the width, and what."""

    counts: tuple[int, ...]
    expected: tuple[float, ...]
    labels: tuple[tuple[float, str], ...]
    title: str


@dataclass(frozen=True)
class HeatMap:
    """A square of shades, 0 to 6, rows downwards, with the same labels at both sides, or none."""

    shades: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class DiagramNode:
    """A box of a diagram.

    Attributes:
        name: by which others call it their parent.
        lines: what stands in it.
        parents: names of nodes.
        kind: `source` of what comes from outside, `filled` or `plain`.
        remark: what is unusual about it; it has a dashed outline then.
    """

    name: str
    lines: tuple[str, ...]
    parents: tuple[str, ...]
    kind: str = "plain"
    remark: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes in an order in which parents come first, with a line from each parent."""

    title: str
    nodes: tuple[DiagramNode, ...]


@dataclass(frozen=True)
class Token:
    """One token of an input.

    Attributes:
        masked: whether it is hidden from the others.
        marked, underlined: whether it stands out.
        level: of heat, 0 to 5.
        about: the rest in words.
    """

    text: str
    masked: bool = False
    marked: bool = False
    underlined: bool = False
    level: int = 0
    about: str = ""


@dataclass(frozen=True)
class Headline:
    """The result in one line, in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Heading:
    """What the following blocks are about, and its outcome, in a tone.

    Attributes:
        close: whether it follows the block before without a blank line.
    """

    text: str
    verdict: str = ""
    tone: str = ""
    close: bool = False
    level: int = 3


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two, in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Items:
    """A list; the first text of an item is its statement, the others give details.

    Attributes:
        apart: whether a blank line stands before each item.
    """

    items: tuple[tuple[str | TextSpan, ...], ...]
    apart: bool = False


@dataclass(frozen=True)
class Lists:
    """Lists in running text, each after what it lists: `not observed: a, b, c`. An empty list is its title alone."""

    lists: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        is_text: whether it has texts, which begin at the same place; numbers end there.
        is_remark: whether a page shows it beside the row's name.
        spare: 0, or how soon a narrow terminal leaves it out: those with the largest number first.
        ticks: of a column of plots: where on the axis, in percent, and the label.
    """

    head: str
    is_text: bool = False
    is_remark: bool = False
    spare: int = 0
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """A row: its name, then the other columns, in a tone."""

    cells: tuple[Cell, ...]
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A name and numbers a row, in groups, each with a title that may be empty. Plots are shown on pages alone.

    Attributes:
        most: how many rows of a group the terminal and Markdown show, if not all.
    """

    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    most: int | None = None

    def only(self, kept: Sequence[int]) -> "Table":
        """The table with these columns alone."""
        groups = ((t, tuple(Row(tuple(row.cells[i] for i in kept), row.tone) for row in rows)) for t, rows in self.groups)
        return Table(tuple(self.columns[i] for i in kept), tuple(groups), self.most)

    @property
    def in_text(self) -> "Table":
        """The table for a renderer of texts: `most` rows of each group, no plots."""
        short = Table(self.columns, tuple((title, rows[: self.most]) for title, rows in self.groups))
        plots = {i for _, rows in short.groups for row in rows for i, cell in enumerate(row.cells) if isinstance(cell, Plot)}
        return short.only([i for i in range(len(self.columns)) if i not in plots])

    @property
    def more(self) -> int:
        """How many rows a renderer of texts leaves out."""
        return sum(len(rows) - len(rows[: self.most]) for _, rows in self.groups)


@dataclass(frozen=True)
class Code:
    """Text as it was laid out: a traceback, a script, a batch.

    Attributes:
        wrapped: whether a terminal breaks long lines.
    """

    text: str
    language: str = "text"
    wrapped: bool = False


@dataclass(frozen=True)
class Tokens:
    """Rows of tokens, numbered from 0."""

    rows: tuple[tuple[Token, ...], ...]


@dataclass(frozen=True)
class Figures:
    """Drawings side by side, each with a caption. Markdown shows diagrams alone; a terminal shows none."""

    figures: tuple[tuple[Histogram | HeatMap | Diagram, str], ...]


@dataclass(frozen=True)
class Folded:
    """What can be left unread, under a summary; a terminal cannot fold, and shows it.

    Attributes:
        long: whether a terminal leaves it out.
        is_open: whether a page shows it unfolded at first.
    """

    summary: str
    blocks: "Blocks"
    long: bool = False
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """Blocks that belong together, in a frame of a tone.

    Attributes:
        id: to which spans lead.
        facets: names and values by which a page can filter it.
    """

    blocks: "Blocks"
    tone: str = ""
    id: str = ""
    facets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Filtered:
    """Sections that have the same facets: a page lets the reader choose of them."""

    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Abridged:
    """What a page shows in full; the terminal and Markdown show `short` in its place, or nothing."""

    full: "Blocks"
    short: "Blocks" = ()


Block = (
    Headline | Heading | Paragraph | Items | Lists | Table | Code | Tokens | Figures | Folded | Section | Filtered | Abridged
)  # fmt: skip
Blocks = tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A report. A page shows its title, in its tone; other forms begin with the blocks."""

    title: str
    blocks: Blocks
    tone: str = ""


def in_text(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks that a renderer of texts shows: of abridged ones the short form, of sections what is in them."""
    for block in blocks:
        match block:
            case Abridged(_, short):
                yield from in_text(short)
            case Section(inner):
                yield from in_text(inner)
            case Filtered(sections):
                yield from in_text(sections)
            case Folded(_, inner):
                yield replace(block, blocks=tuple(in_text(inner)))
            case _:
                yield block


def tabled(
    columns: Iterable[Column | str], groups: Iterable[tuple[str, Sequence[Row | Sequence[Cell]]]], most: int | None = ROWS
) -> Iterator[Table]:
    """A table without its empty columns and groups; none where nothing is left."""
    named = tuple(column if isinstance(column, Column) else Column(column) for column in columns)
    found = tuple(
        (title, tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows)) for title, rows in groups if rows
    )
    kept = [i for i in range(len(named)) if i == 0 or any(row.cells[i] not in ("", "-") for _, rows in found for row in rows)]
    if found:
        yield Table(named, found, most).only(kept)
