"""A short document in blocks, shown by a terminal and in Markdown each in its own way. Values, and two functions that show them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len

from conformance.report.layout import BLANK, TONES, Line, line, spans, table
from conformance.report.markdown import cell

SHOWN = 20  # rows of a group that a reader looks at; JSON and a page have all of them

_GAP = 2  # columns between columns, and before the first
_FIGURES = re.compile(r"[-+\d.,e σ→\[\]]*")


@dataclass(frozen=True)
class Verdict:
    """What it all comes to, in a tone: `good`, `bad`, `odd` or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Heading:
    """What the following is about, and what came of it, in a tone."""

    text: str
    verdict: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two, in a tone."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Items:
    """A list; of each item the first text is what it says, the others are about it."""

    items: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """A name and numbers a row, in groups, each with a title that may be empty.

    Attributes:
        spare: the columns that a narrow terminal leaves out, some together, the first of them first.
    """

    heads: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    spare: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Folded:
    """What can be left unread, under a summary; a terminal cannot fold, and shows it."""

    summary: str
    blocks: "tuple[Block, ...]"


Block = Verdict | Heading | Paragraph | Items | Table | Folded
Document = tuple[Block, ...]


def tabled(
    heads: Sequence[str], groups: Iterable[tuple[str, Sequence[Sequence[str]]]], spare: Sequence[Sequence[str]] = ()
) -> Iterator[Block]:
    """A table without the columns in which nothing stands, and of each group as much as a reader looks at."""
    found = [(title, [tuple(row) for row in rows]) for title, rows in groups if rows]
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i] not in ("", "-") for _, rows in found for row in rows)]
    if found:
        shown = ((title, tuple(tuple(row[i] for i in kept) for row in rows[:SHOWN])) for title, rows in found)
        yield Table(tuple(heads[i] for i in kept), tuple(shown), tuple(map(tuple, spare)))
    more = sum(max(len(rows) - SHOWN, 0) for _, rows in found)
    if more:
        yield Paragraph(f"and {more} more, which JSON and HTML have", "quiet")


def written(document: Document, width: int) -> Iterator[Line]:
    """For a terminal of `width` columns."""
    for number, block in enumerate(document):
        if number and isinstance(block, Heading | Folded):
            yield BLANK
        yield from _lines(block, width)


def _lines(block: Block, width: int) -> Iterator[Line]:
    match block:
        case Verdict(text, tone):
            yield line(text, TONES.get(tone, "bold"))
        case Heading(text, verdict, tone):
            yield spans((text, "bold"), *([(": ", ""), (verdict, TONES.get(tone, ""))] if verdict else []))
        case Paragraph(text, tone):
            yield line(text, TONES.get(tone, ""), indent=2)
        case Items(items):
            for said, *about in items:
                yield line(said, "bold", indent=2, hang=4)
                yield from (line(text, indent=4) for text in about)
        case Table():
            yield from _fitting(block, width)
        case Folded(summary, blocks):
            yield line(summary, "bold")
            yield from written(blocks, width)


def _fitting(block: Table, width: int) -> Iterator[Line]:
    """Without as many of the columns that can be spared as it takes to have each row on one line."""
    rows = [block.heads, *_grouped(block)]
    for names in block.spare:
        if sum(_GAP + max(map(cell_len, column)) for column in zip(*rows, strict=True)) <= width:
            break
        kept = [i for i, head in enumerate(rows[0]) if head not in names]
        rows = [tuple(row[i] for i in kept) for row in rows]
    return table(rows[0], rows[1:], width)


def _grouped(block: Table) -> Iterator[tuple[str, ...]]:
    """The rows, under the title of their group where it has one."""
    for title, rows in block.groups:
        yield from [(title, *[""] * (len(block.heads) - 1))] if title else []
        yield from ((f"  {name}" if title else name, *figures) for name, *figures in rows)


def markdown(document: Document) -> str:
    """For a pull request."""
    return "\n".join(_markdown(document)).strip() + "\n"


def _markdown(document: Document) -> Iterator[str]:
    for block in document:
        yield ""
        match block:
            case Verdict(text):
                yield f"**{cell(text)}**"
            case Heading(text, verdict, _):
                yield f"### {cell(text)}{f': {cell(verdict)}' if verdict else ''}"
            case Paragraph(text):
                yield cell(text)
            case Items(items):
                yield from (f"- **{cell(said)}**{''.join(f'<br>{cell(text)}' for text in about)}" for said, *about in items)
            case Table(heads, groups):
                yield _row(map(cell, heads))
                yield _row(["---", *["---:"] * (len(heads) - 1)])
                for title, rows in groups:
                    yield from [_row([f"**{cell(title)}**", *[""] * (len(heads) - 1)])] if title else []
                    yield from (_row([cell(name), *map(_figure, figures)]) for name, *figures in rows)
            case Folded(summary, blocks):
                yield f"<details><summary>{escape(summary)}</summary>"
                yield from _markdown(blocks)
                yield from ("", "</details>")


def _figure(text: str) -> str:
    """Numbers as they are, which can do nothing in the middle of a line, and read badly with backslashes."""
    return text if _FIGURES.fullmatch(text) else cell(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
