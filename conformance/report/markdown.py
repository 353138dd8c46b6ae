"""Rendering of a document as Markdown, for pull requests, issues and summaries of CI jobs. Pure functions."""

import re
from collections.abc import Iterable, Iterator
from html import escape

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
_SPAN = re.compile("`([\\w .:/*?=-]+)`")  # code without a character that could end it, a cell or a line
_FIRST = re.compile(r"^(\d*)([#>+=.)-])")  # at the start of a line these begin a heading, a quotation or a list
_FIGURES = re.compile(r"[-+\d.,e σ→×\[\]]*")


def markdown(document: Document) -> str:
    """Return the document as Markdown, ending with one newline."""
    return "\n".join(_lines(in_text(document.blocks))).strip() + "\n"


def cell(text: str) -> str:
    """Return the text on one line, escaped so that it cannot end a table cell or be read as HTML or Markdown."""
    flat = " ".join(text.split())
    parts = _SPAN.split(flat)  # texts and, between them, the contents of spans of code
    return _FIRST.sub(r"\1\\\2", "".join(f"`{part}`" if i % 2 else _escaped(part) for i, part in enumerate(parts)))


def _escaped(text: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(lambda c: "&#96;" if c[0] == "`" else f"\\{c[0]}", escaped)


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
    """Return numbers unescaped, since they are no markup inside a line and backslashes hurt readability; escape other texts."""
    return text if _FIGURES.fullmatch(text) else cell(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _token(token: Token) -> str:
    """Return the token's text, struck through if the token is masked."""
    return f"~~{cell(token.text)}~~" if token.masked else cell(token.text)


def _fenced(language: str, text: str) -> list[str]:
    """Return a fenced code block whose fence is longer than any run of backticks in the text."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return [f"{fence}{language}", *text.split("\n"), fence]


def mermaid(diagram: Diagram) -> str:
    """Return the diagram as a Mermaid flowchart, which GitHub and notebooks draw."""
    number = {node.name: f"n{i}" for i, node in enumerate(diagram.nodes)}
    boxes = [f"  {number[node.name]}{_shaped(node)}" for node in diagram.nodes]
    return "\n".join(["flowchart TD", *boxes, *(f"  {number[p]} --> {number[n.name]}" for n in diagram.nodes for p in n.parents)])


def _shaped(node: DiagramNode) -> str:
    """Return a node's shape with its quoted text, in which quotes and HTML are escaped except for the line breaks added here."""
    text = "<br>".join(line.replace("&", "#amp;").replace("<", "#lt;").replace('"', "#quot;") for line in node.lines)
    return f'(["{text}"])' if node.kind == "source" else f'["{text}"]'
