"""A document as a page, or as a part of one for a notebook: no neighbour files, no network, nothing unescaped.

The page's own Content-Security-Policy lets nothing be fetched and no script run but the one whose digest it names, so that a name
or a text that slipped through the escaping could still do nothing.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.names import printable_lines
from conformance.report.document import Document, Plot, Section
from conformance.report.html.diagram import sentences
from conformance.report.html.drawings import drawn

_TEMPLATES = Path(__file__).parent / "templates"
_POWER = re.compile(r"(?<=\d)e([+-])0*(\d+)(?!\d)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def page(document: Document) -> str:
    """A whole page, complete in itself."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _render("page.html", document, style=_source("style.css"), script=script, digest=digest)


def fragment(document: Document) -> str:
    """What stands in the `<main>` of a page, with its style, for a page of somebody else's, where others may stand beside it."""
    body = _render("document.html", document)
    own = _PLACES.sub(rf"\g<1>p{hashlib.sha256(body.encode()).hexdigest()[:8]}-", body)
    return f'<style>{_source("style.css")}</style>\n<div class="bc">\n{own}\n</div>\n'


_PLACES = re.compile(r'( id="| href="#)')  # in texts, quotes are escaped


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"drawn": drawn, "power": power, "breaking": _breaking, "values": _values, "sentences": sentences}
    environment.tests |= {"plot": lambda cell: isinstance(cell, Plot)}
    environment.filters["kind"] = lambda value: type(value).__name__
    return environment


def _readable(value: Any) -> Any:
    """Texts without control characters and marks that turn the direction round; markup is ours, and as it is."""
    return "\n".join(printable_lines(value)) if type(value) is str else value


def power(number: str) -> str:
    """A number as it is printed in books: 3.6e+04 as 3.6×10⁴."""
    return _POWER.sub(lambda found: f"×10{(found[1].strip('+') + found[2]).translate(_RAISED)}", number)


def _breaking(name: str) -> Markup:
    """A name, with leave to break the line after each of its parts."""
    return Markup("<wbr>").join(re.split(r"(?<=[._])", "\n".join(printable_lines(name))))


def _values(sections: Iterable[Section]) -> dict[str, list[str]]:
    """What each facet of the sections may be."""
    found: dict[str, set[str]] = {}
    for name, value in (facet for section in sections for facet in section.facets):
        found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _source(name: str) -> Markup:
    """A file of ours as it is."""
    return Markup((_TEMPLATES / name).read_text("utf-8"))


def _render(template: str, document: Document, **values: Any) -> str:
    return _environment().get_template(template).render(document=document, **values)
