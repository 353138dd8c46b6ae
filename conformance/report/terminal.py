"""Rendering of a document's Markdown for the terminal or as plain text. `show` prints; all other functions are pure.

Lines are broken between words, never inside a name, and keep their indentation. Texts are literal: neither rich's markup
nor escape sequences in them are interpreted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode as Node
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from conformance.report.document import Document

MEASURE = 120  # maximum width of running text in columns; longer lines are hard to read
PIPED = 160  # width in columns of output to a pipe or a file; fits the longest names beside their numbers
_TONES = {"good": "green", "bad": "bold red", "odd": "yellow", "quiet": "dim"}
_INDENT = 2
_GAP = "  "  # between the columns of a table
_LEAST = 30  # columns in which a column of texts is wrapped at least
_WORD = re.compile("[^ ]+ *")
_CLASS = re.compile('<span class="(\\w*)">')

_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@dataclass(frozen=True)
class Line:
    """A text that may be wrapped onto several lines.

    Attributes:
        text: the text with its styles.
        indent, hang: indentation in columns, and that of all lines after the first in addition; None if the text is never wrapped.
    """

    text: Text = field(default_factory=Text)
    indent: int = 0
    hang: int | None = 2

    def wrapped(self, width: int) -> Iterator[Text]:
        """Yield lines of at most `width` columns, except for single words that are longer."""
        breaks: list[int] = []
        if self.hang is not None:
            room, used = min(width, MEASURE) - self.indent, 0
            for word in _WORD.finditer(self.text.plain):
                if used and used + cell_len(word[0].rstrip(" ")) > room:
                    breaks.append(word.start())
                    used = self.hang
                used += cell_len(word[0])
        for number, line in enumerate(self.text.divide(breaks)):
            line.rstrip()
            yield Text(" " * (self.indent + (self.hang or 0) * (number > 0))).append_text(line) if line else line


def show(document: Document, console: Console, *, is_long: bool = False) -> None:
    """Print the document at the width of the console."""
    for text in wrapped(document, console.width, is_long=is_long):
        console.print(text, soft_wrap=True)


def plain(document: Document, width: int, *, is_long: bool = False) -> str:
    """Return the document as a terminal of `width` columns shows it, without colours."""
    return "".join(f"{text.plain}\n" for text in wrapped(document, width, is_long=is_long))


def piped(document: Document) -> str:
    """Return the document as plain text, at the width of a pipe or a file."""
    return plain(document, PIPED)


def wrapped(document: Document, width: int, *, is_long: bool = False) -> Iterator[Text]:
    """Yield the document as lines of at most `width` columns, except for single words that are longer."""
    tree = Node(_PARSER.parse(document.source("terminal", is_long=is_long)))
    before, indent = Line(Text("-")), 0
    for node in tree.children:
        indent = 0 if node.type == "heading" else indent
        for line in (*([Line()] if _stands_apart(node) else []), *_lines(node, indent, width)):
            if line.text or before.text:
                yield from line.wrapped(width)
            before = line
        indent = _INDENT if node.type == "heading" else indent


def _stands_apart(node: Node) -> bool:
    """Return whether a blank line precedes a block: a heading, a list of several lines an item, and what follows such a list."""
    before = node.previous_sibling
    return before is not None and (node.type == "heading" or _is_loose(node) or _is_loose(before))


def _is_loose(node: Node) -> bool:
    return node.type.endswith("_list") and any("<br>" in each.content for each in node.walk() if each.type == "inline")


def _lines(node: Node, indent: int, width: int) -> Iterator[Line]:
    match node.type:
        case "heading":
            yield from (Line(text) for text in _inline(node, "bold"))
        case "paragraph":
            yield from (Line(text, indent) for text in _inline(node))
        case "bullet_list" | "ordered_list":
            for number, item in enumerate(node.children, int(node.attrs.get("start", 1))):
                yield from [Line()] if _is_loose(node) and item.previous_sibling else []
                mark = "" if node.type == "bullet_list" else f"{number}. "
                for i, text in enumerate(text for block in item.children for text in _inline(block)):
                    yield Line(Text(mark if i == 0 else "").append_text(text), indent + 2 * (i > 0), 4 if i == 0 else 2)
        case "fence":
            yield from (Line(Text(line), indent, None) for line in node.content.rstrip().split("\n"))
        case "table":
            yield from _table(node, indent, width)
        case _:
            raise TypeError(f"{node.type} is no block of a report")


def _inline(block: Node, style: str = "") -> list[Text]:
    """Return the text of a block, a line for each part between line breaks."""
    texts, styles = [Text()], [style]
    for node in block.children[0].children if block.children else ():
        _append(node, texts, styles)
    return texts


def _append(node: Node, texts: list[Text], styles: list[str]) -> None:
    style = " ".join(filter(None, styles))
    match node.type:
        case "text":
            texts[-1].append(node.content, style)
        case "code_inline":
            texts[-1].append(f"`{node.content}`", style)
        case "softbreak":
            texts[-1].append(" ")
        case "strong" | "s":
            inner = [*styles, "bold" if node.type == "strong" else "dim"]
            texts[-1].append("(" * (node.type == "s"), inner[-1])
            for child in node.children:
                _append(child, texts, inner)
            texts[-1].append(")" * (node.type == "s"), inner[-1])
        case "html_inline" if node.content == "<br>":
            texts.append(Text())
        case "html_inline" if match := _CLASS.fullmatch(node.content):
            styles.append(_TONES[match[1]])
        case "html_inline" if node.content == "</span>":
            styles.pop()
        case _:
            raise TypeError(f"{node.type} is no part of a report's text")


def _table(node: Node, indent: int, width: int) -> Iterator[Line]:
    """Yield the lines of a table, with numbers aligned right.

    If it is wider than `width`, a last column without a title, of remarks, is omitted, and one of texts is wrapped. Otherwise each
    name is placed on a line above its numbers; if it is still too wide, last columns are omitted.
    """
    head, *body = (row for part in node.children for row in part.children)
    is_text = ["right" not in str(cell.attrs.get("style", "")) for cell in head.children]
    rows = [[_inline(cell, "bold" if row is head else "")[0] for cell in row.children] for row in (head, *body)]
    titles = [len(row) > 1 and not any(cell.plain for cell in row[1:]) for row in rows]
    full = [row for row, is_title in zip(rows, titles, strict=True) if not is_title]
    used = [max(cell_len(row[i].plain) for row in full) for i in range(len(is_text))]
    above = [cell_len(rows[0][0].plain), *used[1:]]
    if _needed(used, indent) > width and not rows[0][-1].plain:
        used.pop()
        above.pop()
    before_last = _needed([*used[:-1], 0], 0)
    is_wrapped = _needed(used, indent) > width >= indent + before_last + _LEAST and len(used) > 1 and is_text[len(used) - 1]
    while not is_wrapped and len(used) > 1 and min(_needed(used, indent), _needed(above, indent)) > width:
        used.pop()
        above.pop()
    hang, is_above = (before_last, False) if is_wrapped else (None, _needed(used, indent) > width)
    for row, is_title in zip(rows, titles, strict=True):
        if is_title or (is_above and row is not rows[0]):
            yield Line(row[0], indent, hang)
        if not is_title:
            cells = [Text(), *row[1:]] if is_above and row is not rows[0] else row
            yield Line(_row(cells[: len(used)], above if is_above else used, is_text), indent, hang)


def _needed(used: Sequence[int], indent: int) -> int:
    return indent + sum(used) + len(_GAP) * (len(used) - 1)


def _row(cells: Sequence[Text], used: Sequence[int], is_text: Sequence[bool]) -> Text:
    line = Text()
    for i, (cell, room, left) in enumerate(zip(cells, used, is_text, strict=False)):
        padding = " " * (room - cell_len(cell.plain))
        line.append(_GAP * (i > 0))
        line = line.append_text(cell).append(padding) if left else line.append(padding).append_text(cell)
    return line
