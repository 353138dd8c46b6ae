"""Blocks of a report: plain values that the renderers `terminal`, `markdown` and `html` turn into text.

The texts of a document have no control characters and no bidirectional marks, wherever they are from: these are escaped when the
document is made. Renderers escape what is markup in their format.

To add a kind of block:

1. Define a dataclass here and add it to the union `Block`; if it contains blocks, handle it in `in_text` too.
2. Handle it in `report.terminal`, in `report.markdown` and in the template `report/html/templates/document.html`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from conformance.names import printable, printable_lines

ROWS = 20  # rows of a group that the terminal and Markdown show; JSON and HTML show all


@dataclass(frozen=True)
class TextSpan:
    """A text with a tone (`good`, `bad`, `odd`, `quiet` or none).

    Attributes:
        link: id of the section that the text links to on an HTML page.
        note: remark on the text, in smaller type.
    """

    text: str
    tone: str = ""
    link: str = ""
    note: str = ""

    def __str__(self) -> str:
        """Return the text and its note, for renderers without links."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Points:
    """Points on the axis of a table column; the last one is drawn filled.

    Attributes:
        at: positions in percent of the column's width; None for a point that is not drawn.
        band: end of the allowed range in percent, which starts where the axis starts; None for no range.
        joined: whether a line joins the first and the last point.
    """

    at: tuple[float | None, ...]
    band: float | None = None
    joined: bool = False


@dataclass(frozen=True)
class Ranges:
    """Value ranges, one bar for each series; None for a series without values.

    A bar has smallest value, mean − deviation, mean + deviation and largest value, in percent of the width with zero at 50.
    """

    bars: tuple[tuple[float, float, float, float] | None, ...]


@dataclass(frozen=True)
class HeatStrip:
    """A strip with one heat level, 0 to 5, for each slice of an axis; None for a slice without data.

    `title` is the description for readers who cannot see the strip.
    """

    levels: tuple[int | None, ...]
    title: str


Plot = Points | Ranges | HeatStrip
Cell = str | TextSpan | Plot


@dataclass(frozen=True)
class Histogram:
    """A histogram.

    Attributes:
        counts, expected: observed and expected count of each bin; the latter are drawn as a line.
        labels: position as a fraction of the width, and text, of each label below the bars.
        title: description for readers who cannot see the drawing.
    """

    counts: tuple[int, ...]
    expected: tuple[float, ...]
    labels: tuple[tuple[float, str], ...]
    title: str


@dataclass(frozen=True)
class HeatMap:
    """A square heat map.

    Attributes:
        shades: shade of each cell, 0 to 6; rows run from top to bottom.
        labels: labels of both axes; may be empty.
        title: description for readers who cannot see the drawing.
    """

    shades: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class DiagramNode:
    """A box of a diagram.

    Attributes:
        name: unique name, by which other nodes list this one as a parent.
        lines: lines of text in the box.
        parents: names of the parent nodes.
        kind: `source` for an input from outside the diagram, `filled` or `plain`.
        remark: remark on an exception, drawn as a dashed outline; may be empty.
    """

    name: str
    lines: tuple[str, ...]
    parents: tuple[str, ...]
    kind: str = "plain"
    remark: str = ""


@dataclass(frozen=True)
class Diagram:
    """Boxes, ordered so that parents precede their children, with a line from each parent to each of its children."""

    title: str
    nodes: tuple[DiagramNode, ...]


@dataclass(frozen=True)
class Token:
    """One token of an input.

    Attributes:
        masked: whether the attention mask hides the token.
        marked: whether the token is highlighted.
        level: heat level, 0 to 5.
        about: further facts about the token, in words.
    """

    text: str
    masked: bool = False
    marked: bool = False
    underlined: bool = False
    level: int = 0
    about: str = ""


@dataclass(frozen=True)
class Headline:
    """The result of a report in one line."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading of the blocks that follow.

    Attributes:
        text, verdict, tone: subject of the blocks, and the outcome for that subject with its tone.
        close: whether no blank line separates the heading from the preceding block on the terminal.
        level: heading level, as in HTML.
    """

    text: str
    verdict: str = ""
    tone: str = ""
    close: bool = False
    level: int = 3


@dataclass(frozen=True)
class Paragraph:
    """One or two sentences."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Items:
    """A list of items, each a statement followed by its details; if `apart`, a blank line precedes each item on the terminal."""

    items: tuple[tuple[str | TextSpan, ...], ...]
    apart: bool = False


@dataclass(frozen=True)
class Lists:
    """Lists in running text, each after its title, as in `not observed: a, b, c`; of an empty list only the title is shown."""

    lists: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of_terms(cls, texts: Mapping[str, str]) -> "Lists":
        """Return terms, each with its text."""
        return cls(tuple((term, (text,)) for term, text in texts.items()))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: title of the column.
        is_text: whether the cells are texts, aligned left; numbers are aligned right.
        is_remark: whether an HTML page shows the cell beside the row's name instead of in a column.
        spare: priority with which a narrow terminal omits the column, largest first; columns with 0 are always kept.
        ticks: for a column of plots, position in percent and label of each tick of the axis.
    """

    head: str
    is_text: bool = False
    is_remark: bool = False
    spare: int = 0
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of a table: its name, then the cells of the other columns."""

    cells: tuple[Cell, ...]
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a name and numbers in each row. Columns of plots are shown in HTML only.

    Attributes:
        columns: columns, the first of which holds the names of the rows.
        groups: title, which may be empty, and rows of each group.
        most: maximum number of rows of a group that the terminal and Markdown show; None for all.
    """

    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    most: int | None = None

    def only(self, kept: Sequence[int]) -> "Table":
        """Return the table reduced to the columns with the indices `kept`."""
        groups = ((t, tuple(Row(tuple(row.cells[i] for i in kept), row.tone) for row in rows)) for t, rows in self.groups)
        return Table(tuple(self.columns[i] for i in kept), tuple(groups), self.most)

    @property
    def in_text(self) -> "Table":
        """The table for text renderers: at most `most` rows of each group, and no plots."""
        short = Table(self.columns, tuple((title, rows[: self.most]) for title, rows in self.groups))
        plots = {i for _, rows in short.groups for row in rows for i, cell in enumerate(row.cells) if isinstance(cell, Plot)}
        return short.only([i for i in range(len(self.columns)) if i not in plots])

    @property
    def more(self) -> int:
        """Number of rows that text renderers omit."""
        return sum(len(rows) - len(rows[: self.most]) for _, rows in self.groups)


@dataclass(frozen=True)
class Code:
    """Preformatted text, such as a traceback, a script or a batch.

    Attributes:
        language: language for syntax highlighting in Markdown.
        wrapped: whether the terminal wraps long lines.
    """

    text: str
    language: Literal["text", "python", "json"] = "text"
    wrapped: bool = False


@dataclass(frozen=True)
class Tokens:
    """Rows of tokens, numbered from 0."""

    rows: tuple[tuple[Token, ...], ...]


@dataclass(frozen=True)
class Figures:
    """Drawings side by side, each with a caption. Markdown shows only diagrams; the terminal shows none."""

    figures: tuple[tuple[Histogram | HeatMap | Diagram, str], ...]


@dataclass(frozen=True)
class Folded:
    """Optional blocks that can be folded under a summary. The terminal shows them unfolded.

    Attributes:
        long: whether the terminal omits the blocks.
        is_open: whether an HTML page shows the blocks unfolded initially.
    """

    summary: str
    blocks: "Blocks"
    long: bool = False
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """Blocks that belong together, framed in HTML.

    Attributes:
        tone: tone of the frame.
        id: anchor for links of `TextSpan`.
        facets: names and values by which a reader of the HTML page can filter sections.
    """

    blocks: "Blocks"
    tone: str = ""
    id: str = ""
    facets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Filtered:
    """Sections with the same facet names; an HTML page lets the reader filter them."""

    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Abridged:
    """Blocks that only HTML shows in full; the terminal and Markdown show `short` instead, which may be empty."""

    full: "Blocks"
    short: "Blocks" = ()


Block = (
    Headline | Heading | Paragraph | Items | Lists | Table | Code | Tokens | Figures | Folded | Section | Filtered | Abridged
)  # fmt: skip
Blocks = tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A report: blocks, and a title with a tone that only HTML shows."""

    title: str
    blocks: Blocks
    tone: str = ""

    def __post_init__(self) -> None:
        """Escape unprintable characters."""
        for name in ("title", "blocks"):
            object.__setattr__(self, name, _printable(getattr(self, name)))


def _printable(part: Any) -> Any:
    """Return a part of a document with each of its texts on one line and printable; only code has several lines."""
    if isinstance(part, str):
        return printable(part)
    if isinstance(part, tuple):
        return tuple(map(_printable, part))
    if isinstance(part, Code):
        return replace(part, text="\n".join(printable_lines(part.text)))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: _printable(getattr(part, field.name)) for field in fields(part)})
    return part


def in_text(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks that text renderers show: the short form of abridged blocks, and the contents of sections."""
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
    """Yield a table without empty columns and groups, or nothing if all groups are empty.

    A column may be given by its head alone, and a row by its cells. Text renderers show at most `most` rows of a group.
    """
    named = tuple(column if isinstance(column, Column) else Column(column) for column in columns)
    found = tuple(
        (title, tuple(row if isinstance(row, Row) else Row(tuple(row)) for row in rows)) for title, rows in groups if rows
    )
    kept = [i for i in range(len(named)) if i == 0 or any(row.cells[i] not in ("", "-") for _, rows in found for row in rows)]
    if found:
        yield Table(named, found, most).only(kept)
