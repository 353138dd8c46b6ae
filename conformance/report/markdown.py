"""A document in Markdown: for a pull request, an issue or the summary of a CI job. Pure functions."""

import re
from collections.abc import Iterable, Iterator
from html import escape

from conformance.names import printable, printable_lines
from conformance.report.document import (
    Block,
    Code,
    Diagram,
    DiagramNode,
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

_SPECIAL = re.compile(r"[\\`*_\[\]|~$]")
_FIRST = re.compile(r"^(\d*)([#>+=.)-])")  # of a heading, a quotation or a list, where a line begins with it
_FIGURES = re.compile(r"[-+\d.,e σ→×\[\]]*")


def markdown(document: Document) -> str:
    """The document, ended by one newline."""
    return "\n".join(_lines(in_text(document.blocks))).strip() + "\n"


def cell(text: str) -> str:
    """Text that cannot break out of a table's cell, nor be read as HTML or as markup."""
    flat = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
    return _FIRST.sub(r"\1\\\2", _SPECIAL.sub(lambda c: "&#96;" if c[0] == "`" else f"\\{c[0]}", flat))


def _lines(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        yield ""
        match block:
            case Headline(text):
                yield f"**{cell(text)}**"
            case Heading(text, verdict, level=level):
                yield f"{'#' * level} {cell(text)}{f': {cell(verdict)}' if verdict else ''}"
            case Paragraph(text):
                yield cell(text)
            case Items(items):
                for first, *more in items:
                    yield f"- **{cell(str(first))}**{''.join(f'<br>{cell(str(text))}' for text in more)}"
            case Lists(lists):
                yield from (f"- {cell(': '.join([what, ', '.join(of)] if of else [what]))}" for what, of in lists)
            case Table():
                yield from _table(block.in_text)
                yield from ["", f"and {block.more} more, which JSON and HTML have"] if block.more else []
            case Code(text, language):
                yield from _fenced(language, text.rstrip())
            case Tokens(rows):
                yield from (f"{i}. {' '.join(map(_token, row))}" for i, row in enumerate(rows))
            case Figures(figures):
                for drawing, _ in figures:
                    if isinstance(drawing, Diagram):
                        yield from (f"### {cell(drawing.title)}", "", *_fenced("mermaid", mermaid(drawing)), "")
            case Folded(summary, inner):
                yield f"<details><summary>{escape(summary)}</summary>"
                yield from _lines(inner)
                yield from ("", "</details>")
            case _:
                raise TypeError(f"{block!r} is no block of a text")


def _table(block: Table) -> Iterator[str]:
    others = block.columns[1:]
    yield _row(cell(column.head) for column in block.columns)
    yield _row(["---", *("---" if column.is_text else "---:" for column in others)])
    for title, rows in block.groups:
        yield from [_row([f"**{cell(title)}**", *[""] * len(others)])] if title else []
        yield from (_row([cell(str(name)), *(_figure(str(c)) for c in cells)]) for name, *cells in (row.cells for row in rows))


def _figure(text: str) -> str:
    """Numbers as they are, which can do nothing in the middle of a line, and read badly with backslashes."""
    return text if _FIGURES.fullmatch(text) else cell(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _token(token: Token) -> str:
    """Struck out where it is masked."""
    return f"~~{cell(token.text)}~~" if token.masked else cell(token.text)


def _fenced(language: str, text: str) -> list[str]:
    """A block of code: its fence is longer than any that the text has."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [f"{fence}{language}", *printable_lines(text), fence]


def mermaid(diagram: Diagram) -> str:
    """A flowchart that GitHub and notebooks draw."""
    number = {node.name: f"n{i}" for i, node in enumerate(diagram.nodes)}
    boxes = [f"  {number[node.name]}{_shaped(node)}" for node in diagram.nodes]
    return "\n".join(["flowchart TD", *boxes, *(f"  {number[p]} --> {number[n.name]}" for n in diagram.nodes for p in n.parents)])


def _shaped(node: DiagramNode) -> str:
    """Its text, quoted; quotes cannot stand in it, and of HTML only the line breaks that we put there."""
    text = "<br>".join(line.replace("&", "#amp;").replace("<", "#lt;").replace('"', "#quot;") for line in node.lines)
    return f'(["{text}"])' if node.kind == "source" else f'["{text}"]'
