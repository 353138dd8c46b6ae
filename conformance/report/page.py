"""Rendering of a document's Markdown as an HTML page, or as a fragment for a notebook, without other files or network access.

The page's Content-Security-Policy forbids fetching and allows only the script with the given digest, so that a text that escaped
incorrectly could still not execute anything.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import escape

from conformance.names import printable
from conformance.report.document import Document

_TEMPLATES = Path(__file__).parent / "templates"
_PLACES = re.compile(r'( id="| href="#)')  # matches attributes only, since quotes in texts are escaped
_PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
_PARSER.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0" role="region" aria-label="table"><table>\n')
_PARSER.add_render_rule("table_close", lambda *_: "</table></div>\n")


def page(document: Document) -> str:
    """Return the document as a complete, self-contained HTML page."""
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; \
img-src data:">
<link rel="icon" href="data:,">
<title>{escape(printable(document.title))}</title>
<style>{_file("style.css")}</style>
</head>
<body class="bc">
<a class="skip" href="#content">Skip to the content</a>
<main id="content">
{_body(document)}
</main>
<script>{script}</script>
</body>
</html>
"""


def fragment(document: Document) -> str:
    """Return the document as an HTML fragment with its style, for another page that may contain several such fragments.

    A digest of the contents is prefixed to all ids and links, so that they differ between fragments.
    """
    body = _body(document)
    distinct = _PLACES.sub(rf"\g<1>p{hashlib.sha256(body.encode()).hexdigest()[:8]}-", body)
    return f'<style>{_file("style.css")}</style>\n<div class="bc">\n{distinct}\n</div>\n'


def _body(document: Document) -> str:
    tokens = _PARSER.parse(document.source("page"))
    _describe_cells(tokens)
    return str(_PARSER.renderer.render(tokens, _PARSER.options, {}))


def _describe_cells(tokens: Sequence[Token]) -> None:
    """Make the first cell of each row the head of the row, and give the others the title of their column, for narrow screens."""
    heads: list[str] = []
    column = 0
    for token in tokens:
        if token.attrs.pop("style", ""):  # of numbers, which are aligned right
            token.attrs["class"] = "number"
    for token, content in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "thead_open":
            heads = []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open" and content:
            heads.append("".join(child.content for child in content.children or () if child.type == "text"))
            token.attrSet("scope", "col")
        elif token.type == "td_open":
            if column == 0:
                token.tag = "th"
                token.attrSet("scope", "row")
            elif content and content.content:
                token.attrSet("data-head", heads[column])
            column += 1
        elif token.type == "td_close" and column == 1:
            token.tag = "th"


def _file(name: str) -> str:
    return (_TEMPLATES / name).read_text("utf-8")
