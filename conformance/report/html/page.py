"""A page, or a part of one for a notebook, from a template: no neighbour files, no network, nothing unescaped.

The page's own Content-Security-Policy lets nothing be fetched and no script run but the one whose digest it names, so that a name
or a text that slipped through the escaping could still do nothing.
"""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.names import printable_lines

_TEMPLATES = Path(__file__).parent / "templates"


def page(template: str, title: str, **values: Any) -> str:
    """A whole document; `template`, which knows the title too, is what stands in its `<main>`."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = _render(template, {"title": title, **values})
    return _render("page.html", {"title": title, "style": _source("style.css"), "script": script, "digest": digest, "body": body})


def fragment(template: str, title: str, **values: Any) -> str:
    """What stands in the `<main>` of a page, with its style, for a page of somebody else's, where others may stand beside it."""
    body = _of_its_own(_render(template, {"title": title, **values}))
    return _render("fragment.html", {"style": _source("style.css"), "body": body})


_PLACES = re.compile(r'( (?:id|aria-labelledby)="| href="#)')  # in texts, quotes are escaped


def _of_its_own(body: Markup) -> Markup:
    """With names of places that no other part has, so that links lead into this one."""
    digest = hashlib.sha256(body.encode()).hexdigest()[:8]
    return Markup(_PLACES.sub(rf"\g<1>p{digest}-", str(body)))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _readable(value: Any) -> Any:
    """Texts without control characters and marks that turn the direction round; markup is ours, and as it is."""
    return "\n".join(printable_lines(value)) if type(value) is str else value


def _source(name: str) -> Markup:
    """A file of ours as it is."""
    return Markup((_TEMPLATES / name).read_text("utf-8"))


def _render(template: str, values: dict[str, Any]) -> Markup:
    return Markup(_environment().get_template(template).render(values))
