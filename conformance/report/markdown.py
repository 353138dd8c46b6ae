"""A document in Markdown: for a pull request, an issue or the summary of a CI job. Pure functions."""

import re
from collections.abc import Iterable, Iterator
from html import escape

from conformance.names import printable, printable_lines
from conformance.report.document import Code, Document, Folded, Heading, Items, Lists, Paragraph, Table, Verdict

_SPECIAL = re.compile(r"[\\`*_\[\]|~$]")
_FIRST = re.compile(r"^(\d*)([#>+=.)-])")  # of a heading, a quotation or a list, where a line begins with it
_FIGURES = re.compile(r"[-+\d.,e σ→\[\]]*")


def markdown(document: Document) -> str:
    """The document, ended by one newline."""
    return "\n".join(_lines(document)).strip() + "\n"


def cell(text: str) -> str:
    """Text that cannot break out of a table's cell, nor be read as HTML or as markup."""
    flat = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return _FIRST.sub(r"\1\\\2", _SPECIAL.sub(lambda c: "&#96;" if c[0] == "`" else f"\\{c[0]}", flat))


def _lines(document: Document) -> Iterator[str]:
    for block in document:
        yield ""
        match block:
            case Verdict(text):
                yield f"**{cell(text)}**"
            case Heading(text, verdict):
                yield f"### {cell(text)}{f': {cell(verdict)}' if verdict else ''}"
            case Paragraph(text):
                yield cell(text)
            case Items(items):
                yield from (f"- **{cell(first)}**{''.join(f'<br>{cell(text)}' for text in more)}" for first, *more in items)
            case Lists(lists):
                yield from (f"- {cell(': '.join([what, ', '.join(of)] if of else [what]))}" for what, of in lists)
            case Table():
                yield from _table(block)
            case Code(text, language):
                yield from _fenced(language, text.rstrip())
            case Folded(summary, blocks):
                yield f"<details><summary>{escape(summary)}</summary>"
                yield from _lines(blocks)
                yield from ("", "</details>")


def _table(block: Table) -> Iterator[str]:
    others = len(block.heads) - 1
    yield _row(map(cell, block.heads))
    yield _row(["---", *["---:"] * others])
    for title, rows in block.groups:
        yield from [_row([f"**{cell(title)}**", *[""] * others])] if title else []
        yield from (_row([cell(name), *map(_figure, figures)]) for name, *figures in rows)


def _figure(text: str) -> str:
    """Numbers as they are, which can do nothing in the middle of a line, and read badly with backslashes."""
    return text if _FIGURES.fullmatch(text) else cell(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(language: str, text: str) -> list[str]:
    """A block of code: its fence is longer than any that the text has."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [f"{fence}{language}", *printable_lines(text), fence]
