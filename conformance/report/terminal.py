"""Rendering of a document for the terminal or as plain text. `show` prints; all other functions are pure.

Lines are broken between words, never inside a name, and keep their indentation. Texts are shown literally: neither markup nor
escape sequences in them are interpreted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from conformance.report.document import (
    Block,
    Code,
    Column,
    Document,
    Figures,
    Folded,
    Heading,
    Headline,
    Items,
    Lists,
    Paragraph,
    Table,
    Token,
    Tokens,
    in_text,
)

MEASURE = 120  # maximum width of running text in columns; longer lines are hard to read
PIPED = 160  # width in columns of output to a pipe or a file; fits the longest names beside their numbers
_TONES = {"good": "green", "bad": "bold red", "odd": "yellow", "quiet": "dim"}
_INDENT = 2
_GAPS = (4, 2)  # spaces between the columns of a table, the preferred number first
_TIE = "\N{NO-BREAK SPACE}"  # never occurs in a printable text
_TIED = re.compile(" (?=[=±×σ](?: |,|$))|(?<= [=±×]) ")  # spaces between a number and its name, error or unit
_WORD = re.compile("[^ ]+ *")


@dataclass(frozen=True)
class Line:
    """A text that may be wrapped onto several lines.

    Attributes:
        parts: pieces of the text, each with a style of the library rich, which may be empty.
        indent, hang: indentation in columns, and that of all lines after the first in addition; None if the text is never wrapped.
    """

    parts: tuple[tuple[str, str], ...] = ()
    indent: int = 0
    hang: int | None = 2

    def wrapped(self, width: int) -> Iterator[Text]:
        """Yield lines of at most `width` columns, except for single words that are longer."""
        text = Text.assemble(*((part.replace(_TIE, " "), style) for part, style in self.parts))
        breaks: list[int] = []
        if self.hang is not None:
            room = min(width, MEASURE) - self.indent
            breaks = _breaks(_TIED.sub(_TIE, "".join(part for part, _ in self.parts)), room, room - self.hang)
        for number, line in enumerate(text.divide(breaks)):
            line.rstrip()
            yield Text(" " * (self.indent + (self.hang or 0) * (number > 0))).append_text(line) if line else line


_BLANK = Line()


def show(document: Document, console: Console) -> None:
    """Print the document at the width of the console."""
    for text in wrapped(document, console.width):
        console.print(text, soft_wrap=True)


def plain(document: Document, width: int) -> str:
    """Return the document as a terminal of `width` columns shows it, without colours."""
    return "".join(f"{text.plain}\n" for text in wrapped(document, width))


def piped(document: Document) -> str:
    """Return the document as plain text, at the width of a pipe or a file."""
    return plain(document, PIPED)


def wrapped(document: Document, width: int) -> Iterator[Text]:
    """Yield the document as lines of at most `width` columns, except for single words that are longer."""
    for one in _lines_of(in_text(document.blocks), width):
        yield from one.wrapped(width)


def line(text: str, style: str = "", indent: int = 0, hang: int | None = 2) -> Line:
    """Return a line in one style; leading spaces of the text add to its indentation."""
    rendered = text.lstrip(" ")
    return Line(((rendered, style),), indent + len(text) - len(rendered), hang)


def table(block: Table, width: int) -> Iterator[Line]:
    """Yield the lines of a table, with numbers aligned right and groups under their titles.

    If the table is wider than `width`, columns are omitted in the order of `Column.spare`; if it is still too wide, each name is
    placed on a line above its numbers.
    """
    for spare in sorted({column.spare for column in block.columns} - {0}, reverse=True):
        if _needed(_widths(block), _GAPS[-1]) <= width:
            break
        block = block.only([i for i, column in enumerate(block.columns) if column.spare != spare])
    widths = _widths(block)
    gap = next((gap for gap in (*_GAPS, 1) if _needed(widths, gap) <= width), None)
    if gap is None:
        widths[0] = cell_len(block.columns[0].head)
    yield _row([column.head for column in block.columns], block.columns, widths, gap or _GAPS[-1], "bold")
    for title, rows in block.groups:
        yield from [line(title, "bold", indent=_INDENT)] if title else []
        for row in rows:
            name, *numbers = map(str, row.cells)
            name = f"  {name}" if title else name
            if gap is None:
                yield line(name, indent=_INDENT, hang=None)
                name = ""
            yield _row([name, *numbers], block.columns, widths, gap or _GAPS[-1], _TONES.get(row.tone, ""))


def _widths(block: Table) -> list[int]:
    """Return the width of each column; names in a group with a title are indented by two spaces."""
    heads = [cell_len(column.head) for column in block.columns]
    cells = (
        [cell_len(str(cell)) + 2 * (i == 0 and bool(title)) for i, cell in enumerate(row.cells)]
        for title, rows in block.groups
        for row in rows
    )
    return list(map(max, zip(heads, *cells, strict=True)))


def _needed(widths: Sequence[int], gap: int) -> int:
    return _INDENT + sum(widths) + gap * (len(widths) - 1)


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], gap: int, style: str) -> Line:
    padded = (
        text + " " * (w - cell_len(text)) if i == 0 or column.is_text else " " * (w - cell_len(text)) + text
        for i, (text, column, w) in enumerate(zip(cells, columns, widths, strict=True))
    )
    return Line((((" " * gap).join(padded), style),), _INDENT, None)


def _breaks(text: str, first: int, rest: int) -> list[int]:
    """Return the offsets at which a text is broken, for a first line of `first` columns and further lines of `rest` columns."""
    breaks, used, room = [], 0, first
    for start, word in _words(text, rest):
        if used and used + cell_len(word.rstrip(" ")) > room:
            breaks.append(start)
            used, room = 0, rest
        used += cell_len(word)
    return breaks


def _words(text: str, room: int) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each unbreakable piece; a piece with ties that is wider than `room` is split at the ties."""
    for tied in _WORD.finditer(text):
        whole = cell_len(tied[0].rstrip(" ")) <= room
        words = [tied] if whole else _WORD.finditer(tied[0].replace(_TIE, " "))
        yield from ((tied.start() * (not whole) + word.start(), word[0]) for word in words)


def _lines_of(blocks: Iterator[Block], width: int) -> Iterator[Line]:
    before: Block | None = None
    for block in blocks:
        if isinstance(block, Figures) or (isinstance(block, Folded) and block.long):
            continue
        if before is not None and _stands_apart(block, before):
            yield _BLANK
        yield from _lines(block, width)
        before = block


def _stands_apart(block: Block, before: Block) -> bool:
    """Return whether a blank line separates a block from the preceding one."""
    if isinstance(block, Headline):
        return not isinstance(before, Headline)
    if isinstance(block, Tokens) or isinstance(before, Tokens):
        return True
    if isinstance(before, Items) and before.apart and not (isinstance(block, Items) and block.apart):
        return True
    return isinstance(block, Folded) or (isinstance(block, Heading) and not block.close)


def _lines(block: Block, width: int) -> Iterator[Line]:
    match block:
        case Headline(text, tone):
            yield line(text, _TONES.get(tone, "bold"))
        case Heading(text, verdict, tone):
            parts = [(text, "bold"), *([(": ", ""), (verdict, _TONES.get(tone, ""))] if verdict else [])]
            yield Line(tuple(parts))
        case Paragraph(text, tone):
            yield line(text, _TONES.get(tone, ""), indent=2)
        case Items(items, apart):
            for statement, *details in items:
                yield from [_BLANK] if apart else []
                yield line(str(statement), "bold", indent=2, hang=4)
                yield from (line(str(text), indent=4) for text in details)
        case Lists(lists):
            yield from (_listed(what, of) if of else line(what, indent=2) for what, of in lists)
        case Table():
            yield from table(block.in_text, width)
            yield from [line(f"and {block.more} more, which JSON and HTML have", "dim", 2)] if block.more else []
        case Code(text, _, is_wrapped):
            yield from (line(one, indent=2, hang=2 if is_wrapped else None) for one in text.rstrip().split("\n"))
        case Tokens(rows):
            yield from (Line(((f"{i}  ", ""), *_tokens(row)), hang=3) for i, row in enumerate(rows))
        case Folded(summary, blocks):
            yield line(summary, "bold")
            yield from _lines_of(iter(blocks), width)
        case _:
            raise TypeError(f"{block!r} is no block of a text")


def _listed(what: str, items: Sequence[str]) -> Line:
    """Return the line `what: item, item, …`.

    A single item, such as the meaning of a term, is broken between any words; one of several only if it is longer than a line.
    """
    tied = items if len(items) == 1 else [item.replace(" ", _TIE) for item in items]
    return Line(((f"{what}: {', '.join(tied)}", ""),), 2)


def _tokens(row: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Yield tokens with their styles; masked tokens are in parentheses, and a run of equal ones is shown once with its length."""
    for (text, masked, marked), found in groupby(row, lambda t: (t.text.replace(" ", _TIE), t.masked, t.marked)):
        count = len(list(found))
        if not masked:
            yield f"{text} " * count, "bold yellow" if marked else ""
        else:
            yield f"({text}) " if count == 1 else f"({count}{_TIE}×{_TIE}{text}) ", "dim"
