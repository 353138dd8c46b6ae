"""One document in three forms: every text is escaped in each of them, and only a page has drawings and every row."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from conformance.names import printable
from conformance.report.document import ROWS, Document, Span, escaped, markdown
from conformance.report.drawings import HeatStrip, Points, drawn
from conformance.report.page import page
from conformance.report.terminal import plain

TEXTS = st.lists(
    st.one_of(
        st.characters(),
        st.sampled_from([*'\x00\x07\x1b\x7f\xa0\u200b\u202e\ud800`|<>&*_[]()\\~$#+-=.:!1 \n\t"']),
        st.sampled_from(
            ["---", "```", "~~", "**", "__", "<b>", "<!--", "&amp;", "&#60;", "[x](y)", "![x](y)", "`a`", "1. ", "- ", "# "]
        ),
    ),
    max_size=12,
).map("".join)
FRAMES = {"paragraph": "{}", "word": "a {} b", "item": "- {}", "heading": "## {}", "cell": "| {} | x |\n| --- | --- |\n| {} | y |"}
PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def _structure(tokens: list[Token]) -> list[tuple[str, list[str]]]:
    return [
        (token.type, [child.type for child in token.children or () if child.type not in ("text", "code_inline")])
        for token in tokens
    ]


@given(TEXTS)
@example("1.")
@example("a #")
@example("\\|`<b>")
@example("a_b_ _c_")
def test_an_escaped_text_is_read_as_that_text_wherever_a_template_inserts_it(text: str) -> None:
    words = " ".join(printable(text).split())
    for frame in FRAMES.values():
        tokens = PARSER.parse(frame.format(*[escaped(text)] * frame.count("{}")))
        if words:
            assert _structure(tokens) == _structure(PARSER.parse(frame.format(*["word"] * frame.count("{}"))))
            inlines = [token.children or [] for token in tokens if token.type == "inline"]
            read = "".join(f"`{c.content}`" if c.type == "code_inline" else c.content for c in inlines[0])
            assert words in read
            assert len(read) == len(words) + 4 * frame.startswith("a ")


DRAWINGS = (
    Points(20.0, 40.0, 60.0),
    HeatStrip((0, 5, None), "in a <strip>"),
)


def test_a_page_alone_has_drawings_and_all_rows() -> None:
    rows = [(f"row-{n}", *DRAWINGS, Span(f"{n} ms", "bad", "here", "a | note"), "-") for n in range(ROWS + 5)]
    tables = [("a heading", ["name", "a", "b", "time:", "nothing"], [("a group",), *rows])]
    document = Document("names", {"tables": tables})
    html, texts = page(document), (markdown(document), plain(document, 100))
    assert (html.count("<tr>"), html.count("<svg"), html.count('<i class="points"')) == (ROWS + 7, len(rows), len(rows))
    assert ('href="#here"' in html, 'data-head="time"' in html, "<strip>" in html, "nothing" in html) == (True, True, False, False)
    for text in texts:
        assert [part in text for part in ("row-0", "a group", "0 ms (a", "<svg", "points")] == [True] * 3 + [False] * 2


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_a_drawing_is_on_one_line_and_can_be_in_a_cell(drawing: Points) -> None:
    assert not re.search(r"[\n|]", drawn(drawing))
