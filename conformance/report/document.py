"""A report is one Markdown document, which a template of `templates` writes over a view of the records.

The three forms of a document differ in little, which the templates state: `markdown` is the document itself, `terminal` has what
is not folded, and `page` has HTML around the Markdown, for frames, folds and drawings. `report.terminal` and `report.page` render
the latter two.

Every value that a template inserts is escaped: control characters and bidirectional marks, and what Markdown or HTML would read as
markup. Code in backticks stays code. What is no data is written in the template.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from conformance.names import printable, printable_lines
from conformance.report.drawings import Drawing, drawn

Form = Literal["markdown", "terminal", "page"]
ROWS = 20  # rows of a long table that the terminal and Markdown show; JSON and the page show all

_TEMPLATES = Path(__file__).parent / "templates"
_CODE = re.compile("`([\\w .:/*?=-]+)`")  # code without a character that could end it, a cell or a line
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|#$")  # an underscore inside a word is no markup
_FIRST = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=>|(?:#{1,6}|[-+])(?:\s|$)|[-=\s]+$))")  # begins a list, a heading, a rule, …
_FENCE = re.compile(r"`{3,}")


@dataclass(frozen=True)
class Span:
    """A text with a tone (`good`, `bad`, `odd`, `quiet` or none), a link to a section of the page, and a note in smaller type."""

    text: str
    tone: str = ""
    link: str = ""
    note: str = ""


Cell = str | Span | Drawing
Row = Sequence[Cell]


@dataclass(frozen=True)
class Document:
    """A report.

    Attributes:
        template: name of the template.
        view: the values that it reads, by name.
        title, tone: title of the page, and the tone of its verdict.
        data: the same for programs, a value that JSON has, or a function without arguments that returns it.
    """

    template: str
    view: dict[str, Any]
    title: str = ""
    tone: str = ""
    data: Any = None

    def source(self, form: Form, *, is_long: bool = False) -> str:
        """Return the Markdown of a form; `is_long` has the terminal show what is folded."""
        template = _environment(form, is_long).get_template(f"{self.template}.md.j2")
        return _compact(template.render(self.view | {"title": self.title, "tone": self.tone}))


def markdown(document: Document) -> str:
    """Return the document as Markdown, for pull requests, issues and summaries of CI jobs."""
    return document.source("markdown")


def as_json(document: Document) -> str:
    """Return what a report has for programs as JSON on a line, in which NaN and infinities are null."""
    data = document.data() if callable(document.data) else document.data
    return msgspec.json.encode(data, enc_hook=_builtin).decode() + "\n"


def _builtin(value: Any) -> Any:
    """Return a scalar of NumPy as Python's number, and a mapping as a dictionary."""
    return value.item() if hasattr(value, "item") else dict(value)


def escaped(text: str) -> Markup:
    """Return a text on one line, escaped so that Markdown shows it as it is, apart from spans of code."""
    parts = _CODE.split(" ".join(printable(text).split()))  # texts and, between them, the contents of spans of code
    return Markup(_FIRST.sub(r"\1\\", "".join(f"`{part}`" if i % 2 else _plain(part) for i, part in enumerate(parts))))


def _plain(text: str) -> str:
    entities = text.replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(lambda c: "&#96;" if c[0] == "`" else f"\\{c[0]}", entities)


def in_html(text: object) -> Markup:
    """Return a text for an attribute or an element of HTML, which may be inside a cell of a Markdown table."""
    return Markup(escape(printable(str(text))).replace("|", "&#124;"))


def code(text: str, language: str = "") -> Markup:
    """Return a block of code, whose fence is longer than any run of backticks in it."""
    lines = "\n".join(printable_lines(text.rstrip()))
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", lines))])
    return Markup(f"\n{fence}{language}\n{lines}\n{fence}\n")


def _span(span: Span, form: Form) -> Markup:
    """Return the text of a span; of the forms, Markdown has no tones, and a page alone has links."""
    text, note = escaped(span.text), escaped(span.note)
    if form == "markdown":
        return Markup(f"{text} ({note})" if note else text)
    toned = f'<span class="{span.tone}">{text}</span>' if span.tone else text
    if form == "terminal":
        return Markup(f"{toned} ({note})" if note else toned)
    linked = f'<a href="#{in_html(span.link)}">{toned}</a>' if span.link else toned
    return Markup(f"{linked} <small>{note}</small>" if note else linked)


def _inserted(form: Form, value: Any) -> Markup:
    """Return a value that a template inserts."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, Span):
        return _span(value, form)
    return drawn(value) if isinstance(value, Drawing) else escaped(str(value))


def _cell(form: Form, value: Cell) -> Markup:
    return Markup("-") if value == "-" else _inserted(form, value)  # inside a line it is no bullet


def table(form: Form, heads: Sequence[str], rows: Sequence[Row], most: int | None = ROWS) -> Markup:
    """Return a table without its empty columns; empty without rows.

    Args:
        form: the form of the document; only a page has columns of drawings.
        heads: titles of the columns; the numbers of one that ends with a colon are aligned right, as in Markdown's `---:`.
        rows: the rows; one with fewer cells than heads, a single one, is the title of those that follow.
        most: number of rows that other forms than a page have at most.
    """
    kept_rows = rows if form == "page" else rows[:most]
    full = [row for row in kept_rows if len(row) == len(heads)]
    if not full:
        return Markup()

    def is_kept(column: int) -> bool:
        cells = [row[column] for row in full]
        is_drawn = any(isinstance(cell, Drawing) for cell in cells)
        return column == 0 or (form == "page" if is_drawn else any(cell not in ("", "-") for cell in cells))

    kept = [column for column in range(len(heads)) if is_kept(column)]
    lines = [
        [_inserted(form, heads[c].removesuffix(":")) for c in kept],
        [Markup("---:" if heads[c].endswith(":") else "---") for c in kept],
        *(
            [Markup(f"**{_inserted(form, row[0])}**"), *[Markup()] * (len(kept) - 1)]
            if len(row) < len(heads)
            else [_cell(form, row[c]) for c in kept]
            for row in kept_rows
        ),
    ]
    more = len(rows) - len(kept_rows)
    rest = f"\nand {more} more, which JSON and the page have\n" if more else ""
    return Markup("\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), rest]))


@lru_cache
def _environment(form: Form, is_long: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,  # so that what macros return is markup, and is not escaped again
        finalize=partial(_inserted, form),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    values: dict[str, Callable[..., Any]] = {"table": partial(table, form), "code": code, "span": Span}
    environment.globals |= {"form": form, "is_long": is_long, **values}
    environment.filters |= {"html": in_html}
    return environment


def _compact(source: str) -> str:
    """Return Markdown without repeated blank lines, except in code."""
    lines, fence = [""], ""
    for line in source.splitlines():
        if fence or line.strip() or lines[-1]:
            lines.append(line if fence else line.rstrip())
        if fence:
            fence = "" if line == fence else fence
        elif match := _FENCE.match(line):
            fence = match[0]
    return "\n".join(lines).strip() + "\n"
