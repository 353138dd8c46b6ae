"""Lines on a terminal: broken between words and never in a name, with their indentation kept; and tables of names and numbers.

Pure. What a text holds is shown as it is: neither as markup nor as an escape sequence.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from conformance.names import printable

MEASURE = 120  # columns of running text: an eye loses its way back along longer lines
TONES = {"good": "green", "bad": "bold red", "odd": "yellow"}  # how a terminal shows them
_TIE = "\N{NO-BREAK SPACE}"  # no printable text has it
_TIED = re.compile(" (?=[=±×σ](?: |,|$))|(?<= [=±×]) ")  # the spaces within a number with its name, error or unit
_WORD = re.compile("[^ ]+ *")


@dataclass(frozen=True)
class Line:
    """A text that may take several lines.

    Attributes:
        parts: pieces of it, each with a style of rich's, which may be empty.
        indent: by how many columns it stands in.
        hang: by how many more what does not fit the first line; None: it is never broken.
    """

    parts: tuple[tuple[str, str], ...] = ()
    indent: int = 0
    hang: int | None = 2

    def wrapped(self, width: int) -> Iterator[Text]:
        """As lines of at most `width` columns, but for words that are longer."""
        text = Text.assemble(*((part.replace(_TIE, " "), style) for part, style in self.parts))
        breaks: list[int] = []
        if self.hang is not None:
            room = min(width, MEASURE) - self.indent
            breaks = _breaks(_TIED.sub(_TIE, "".join(part for part, _ in self.parts)), room, room - self.hang)
        for number, line in enumerate(text.divide(breaks)):
            line.rstrip()
            yield Text(" " * (self.indent + (self.hang or 0) * (number > 0))).append_text(line) if line else line


BLANK = Line()


def spans(*parts: tuple[str, str], indent: int = 0, hang: int | None = 2) -> Line:
    """A line of several styles."""
    return Line(tuple((printable(part), style) for part, style in parts), indent, hang)


def line(text: str, style: str = "", indent: int = 0, hang: int | None = 2) -> Line:
    """A line of one style; the spaces that it begins with stand it in."""
    rendered = text.lstrip(" ")
    return spans((rendered, style), indent=indent + len(text) - len(rendered), hang=hang)


def listed(what: str, items: Sequence[str], indent: int = 0, style: str = "") -> Line:
    """`what: item, item, …`, broken between items, unless one alone is too long."""
    tied = (printable(item).replace(" ", _TIE) for item in items)
    return Line(((f"{printable(what)}: {', '.join(tied)}", style),), indent)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, indent: int = 2) -> Iterator[Line]:
    """A name and numbers a row, the numbers flush right; where that is too wide, each name stands above its numbers."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    fitting = (gap for gap in (4, 2) if indent + widths[0] + sum(gap + w for w in widths[1:]) <= width)
    gap = next(fitting, None)
    if gap is not None:
        yield _row(heads, widths, gap, indent, "bold")
        yield from (_row(row, widths, gap, indent) for row in rows)
        return
    widths[0] = cell_len(heads[0])
    yield _row(heads, widths, 2, indent, "bold")
    for name, *numbers in rows:
        yield Line(((name, ""),), indent, None)
        yield _row(("", *numbers), widths, 2, indent)


def _row(cells: Sequence[str], widths: Sequence[int], gap: int, indent: int, style: str = "") -> Line:
    name, *numbers = cells
    padded = name + " " * (widths[0] - cell_len(name))
    right = "".join(" " * (gap + w - cell_len(number)) + number for number, w in zip(numbers, widths[1:], strict=True))
    return Line(((padded + right, style),), indent, None)


def _breaks(text: str, first: int, rest: int) -> list[int]:
    """Where lines begin, but for the first, which has `first` columns: as much on each as fits."""
    breaks, used, room = [], 0, first
    for start, word in _words(text, rest):
        if used and used + cell_len(word.rstrip(" ")) > room:
            breaks.append(start)
            used, room = 0, rest
        used += cell_len(word)
    return breaks


def _words(text: str, room: int) -> Iterator[tuple[int, str]]:
    """What is not to be broken, with where it begins; ties hold as long as there is room."""
    for tied in _WORD.finditer(text):
        whole = cell_len(tied[0].rstrip(" ")) <= room
        words = [tied] if whole else _WORD.finditer(tied[0].replace(_TIE, " "))
        yield from ((tied.start() * (not whole) + word.start(), word[0]) for word in words)
