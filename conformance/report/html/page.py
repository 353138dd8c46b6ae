"""Rendering of a document as an HTML page, or as a fragment for a notebook, without other files, network access or unescaped text.

The page's Content-Security-Policy forbids fetching and allows only the script with the given digest, so that a text that escaped
incorrectly could still not execute anything.
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

from conformance.report.document import Document, Plot, Section
from conformance.report.html.drawings import drawn, sentences

_TEMPLATES = Path(__file__).parent / "templates"
_POWER = re.compile(r"(?<=\d)e([+-])0*(\d+)(?!\d)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def page(document: Document) -> str:
    """Return the document as a complete, self-contained HTML page."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _render("page.html", document, style=_source("style.css"), script=script, digest=digest)


def fragment(document: Document) -> str:
    """Return the document as an HTML fragment with its style, for another page that may contain several such fragments.

    A digest of the contents is prefixed to all ids and links, so that they differ between fragments.
    """
    body = _render("document.html", document)
    own = _PLACES.sub(rf"\g<1>p{hashlib.sha256(body.encode()).hexdigest()[:8]}-", body)
    return f'<style>{_source("style.css")}</style>\n<div class="bc">\n{own}\n</div>\n'


_PLACES = re.compile(r'( id="| href="#)')  # matches attributes only, since quotes in texts are escaped


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"drawn": drawn, "power": power, "breaking": _breaking, "values": _values, "sentences": sentences}
    environment.tests |= {"plot": lambda cell: isinstance(cell, Plot)}
    environment.filters["kind"] = lambda value: type(value).__name__
    return environment


def power(number: str) -> str:
    """Return a text with numbers such as 3.6e+04 written as 3.6×10⁴."""
    return _POWER.sub(lambda found: f"×10{(found[1].strip('+') + found[2]).translate(_RAISED)}", number)


def _breaking(name: str) -> Markup:
    """Return a name with optional line breaks after each dot and underscore."""
    return Markup("<wbr>").join(re.split(r"(?<=[._])", name))


def _values(sections: Iterable[Section]) -> dict[str, list[str]]:
    """Return the sorted values of each facet of the sections."""
    found: dict[str, set[str]] = {}
    for name, value in (facet for section in sections for facet in section.facets):
        found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _source(name: str) -> Markup:
    """Return the contents of a template file as trusted markup."""
    return Markup((_TEMPLATES / name).read_text("utf-8"))


def _render(template: str, document: Document, **values: Any) -> str:
    return _environment().get_template(template).render(document=document, **values)
