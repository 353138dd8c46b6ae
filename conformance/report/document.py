"""A report as blocks: values, which `report.terminal` and `report.markdown` render each in its own way.

To add a block: give it a dataclass here, and a case in both renderers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ROWS = 20  # of a group that a reader looks at; JSON and a page have all of them


@dataclass(frozen=True)
class Verdict:
    """The result in one line, in a tone: `good`, `bad`, `odd` or none."""

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

    items: tuple[tuple[str, ...], ...]
    apart: bool = False


@dataclass(frozen=True)
class Lists:
    """Lists in running text, each after what it lists: `not observed: a, b, c`. An empty list is its title alone."""

    lists: tuple[tuple[str, tuple[str, ...]], ...]


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
class Code:
    """Text as it was laid out: a traceback, a script, a batch.

    Attributes:
        wrapped: whether a terminal breaks long lines.
    """

    text: str
    language: str = "text"
    wrapped: bool = False


@dataclass(frozen=True)
class Folded:
    """What can be left unread, under a summary; a terminal cannot fold, and shows it.

    Attributes:
        long: whether a terminal leaves it out.
    """

    summary: str
    blocks: "tuple[Block, ...]"
    long: bool = False


Block = Verdict | Heading | Paragraph | Items | Lists | Table | Code | Folded
Document = tuple[Block, ...]


def tabled(
    heads: Sequence[str], groups: Iterable[tuple[str, Sequence[Sequence[str]]]], spare: Sequence[Sequence[str]] = ()
) -> Iterator[Block]:
    """A table without its empty columns, with the first `ROWS` rows of each group; a paragraph counts the others."""
    found = [(title, [tuple(row) for row in rows]) for title, rows in groups if rows]
    kept = [i for i in range(len(heads)) if i == 0 or any(row[i] not in ("", "-") for _, rows in found for row in rows)]
    if found:
        shown = ((title, tuple(tuple(row[i] for i in kept) for row in rows[:ROWS])) for title, rows in found)
        yield Table(tuple(heads[i] for i in kept), tuple(shown), tuple(map(tuple, spare)))
    more = sum(max(len(rows) - ROWS, 0) for _, rows in found)
    if more:
        yield Paragraph(f"and {more} more, which JSON and HTML have", "quiet")
