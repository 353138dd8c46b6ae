"""One document in three formats: each block is rendered in each of them, and what only a page can show is omitted from text."""

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import pytest

from conformance.report import document as blocks
from conformance.report.axis import sigma
from conformance.report.coverage_sentences import exclusion_lists
from conformance.report.html.page import page
from conformance.report.markdown import markdown
from conformance.report.run.network import network
from conformance.report.terminal import plain
from conformance.results.case import Case
from conformance.results.records import Sensitivity
from conformance.tests.sample_records import activation

PLOTS = (
    blocks.Points((20.0, 40.0), 60.0, joined=True),
    blocks.Ranges(((10.0, 20.0, 30.0, 40.0), None)),
    blocks.HeatStrip((0, 5, None), "in a strip"),
)
TICKS = blocks.Column("points", ticks=((0.0, "0.01"), (80.0, "1e+4")))
COLUMNS = ("name", TICKS, "ranges", "strip", blocks.Column("equation", is_text=True, is_remark=True), "number")
(TABLE,) = blocks.tabled(COLUMNS, [("a group", [(f"row-{n}", *PLOTS, "x + 1", f"{n}e+04") for n in range(3)])], most=2)
NODES = (
    blocks.DiagramNode("a", ("first",), (), "source"),
    blocks.DiagramNode("b", ("second", "a + 1"), ("a",), remark="not exposed"),
)
FIGURES = (
    (blocks.Diagram("a diagram", NODES), ""),
    (blocks.HeatMap(((0, 1), (2, 6)), ("x", "y"), "a map"), "of a head"),
    (blocks.Histogram((1, 2, 3), (2, 2, 2), (), "bars"), ""),
)
BLOCKS: tuple[blocks.Block, ...] = (
    blocks.Headline("a verdict", "good"),
    blocks.Heading("a heading", "its outcome", "bad", level=2),
    blocks.Paragraph("a paragraph"),
    blocks.Items((("a statement", blocks.TextSpan("a detail", "bad", "here", "a note")),)),
    blocks.Lists((("a list", ("one", "two")),)),
    TABLE,
    blocks.Code("some code"),
    blocks.Tokens(((blocks.Token("seen"), blocks.Token("hidden", masked=True)),)),
    blocks.Figures(FIGURES),
    blocks.Folded("a summary", (blocks.Paragraph("folded"),)),
    blocks.Folded("long", (blocks.Paragraph("not in a terminal"),), long=True),
    blocks.Section((blocks.Paragraph("in a section"),), "bad", "here", (("name", "x"),)),
    blocks.Filtered((blocks.Section((blocks.Paragraph("to be filtered"),), facets=(("name", "y"),)),)),
    blocks.Abridged((blocks.Paragraph("in full"),), (blocks.Paragraph("in short"),)),
)
DOCUMENT = blocks.Document("a title", BLOCKS)
TEXTS = (markdown(DOCUMENT), plain(DOCUMENT, 100))
EVERYWHERE = (
    *("a verdict", "a heading", "its outcome", "a paragraph", "a statement", "a detail", "a note", "a list", "one, two", "a group"),
    *("row-1", "x + 1", "some code", "seen", "hidden", "a summary", "folded", "in a section", "to be filtered"),
)
ON_THE_PAGE = (
    *("<h1>a title</h1>", "row-2", "in full", "not in a terminal", 'href="#here"', "1×10⁴", "second", "of a head"),
    'data-head="number">1×10⁴',
)


def test_every_block_is_in_every_form() -> None:
    assert {type(block) for block in BLOCKS} == set(get_args(blocks.Block))
    for form in (page(DOCUMENT), *TEXTS):
        text = form.replace("\\", "").replace("<wbr>", "").replace("</dt><dd>", ": ")
        assert [part for part in EVERYWHERE if part not in text] == []


def test_a_page_has_the_title_all_rows_drawings_and_abridged_texts_in_full() -> None:
    text = page(DOCUMENT).replace("<wbr>", "")
    assert [part for part in ON_THE_PAGE if part not in text] == []
    assert "in short" not in text
    assert text.count("<svg") == 1 + 3 * (1 + 2 + 1) + 3


def test_texts_have_no_plots_a_limited_number_of_rows_and_abridged_texts_in_short() -> None:
    for text in TEXTS:
        assert ("in short" in text, "and 1 more" in text) == (True, True)
        assert [part for part in ("a title", "row-2", "points", "in full", "a strip", "a map") if part in text] == []
    assert ["not in a terminal" in text for text in TEXTS] == [True, False]
    assert "n0 --> n1" in TEXTS[0]


@pytest.mark.parametrize("render", [page, markdown, lambda document: plain(document, 80)])
def test_an_unknown_block_is_an_error_instead_of_empty_text(render: Any) -> None:
    with pytest.raises(Exception, match="undefined|no block"):
        render(blocks.Document("", (blocks.Table,)))  # type: ignore[arg-type]


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\x00"
NOT_TEXT = {"tone", "kind", "name", "parents", "language"}


def _hostile(part: Any) -> Any:
    """Return a part of a document with a hostile text in place of each of its texts."""
    if isinstance(part, str):
        return HOSTILE if part else part
    if isinstance(part, tuple):
        return tuple(map(_hostile, part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _hostile(getattr(part, f.name)) for f in fields(part) if f.name not in NOT_TEXT})
    return part


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_every_text_of_every_block_is_escaped(block: blocks.Block) -> None:
    document = blocks.Document(HOSTILE, (_hostile(block),))
    html = page(document)
    assert ("<script>alert" in html, "&lt;script&gt;alert" in html) == (False, True)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", html)
    assert "<script>" not in re.sub("```.*```", "", markdown(document), flags=re.DOTALL)
    for text in (html, markdown(document), plain(document, 80)):
        assert all(c == "\n" or c.isprintable() for c in text)


def test_empty_columns_and_groups_are_omitted() -> None:
    (table,) = blocks.tabled(("name", "none", "some"), [("", [("a", "-", ""), ("b", "", "1")]), ("empty", [])])
    assert [column.head for column in table.columns] == ["name", "some"]
    assert [title for title, _ in table.groups] == [""]
    assert not list(blocks.tabled(("name",), [("empty", [])]))


def test_a_mistake_whose_effect_rounding_hides_completely_is_listed_as_without_effect_there() -> None:
    place = "encoder.layer.0.attention.self.probs"
    (_, items), *_ = exclusion_lists([Sensitivity("mask-added-raw", place, z, 4, 6) for z in (0.0, 3.25)], whole=True)[1:]
    effects = ("no effect beyond rounding", "expected z = 3.2")
    assert items == tuple(f"mask-added-raw (2 of 6 steps, {effect} at {place})" for effect in effects)


def test_the_parts_of_a_failing_network_count_steps_that_are_right_given_their_own_inputs() -> None:
    steps = {"output.dense": 9.0, "output.LayerNorm": 0.5}
    wrong, right = (activation(Case("a", "b"), f"encoder.layer.0.{name}", rms) for name, rms in steps.items())
    for part, counts in ((network([wrong, right]), ": 1 wrong, 1 right, given their own inputs"), (network([right]), ": 1 right")):
        (folded,) = part
        assert isinstance(folded, blocks.Folded)
        assert folded.summary.endswith(counts)


def test_a_sigma_has_three_digits_and_no_negative_zero() -> None:
    assert [sigma(x) for x in (174345.42, 0.5, -0.0)] == ["1.74e+05 σ", "0.5 σ", "0 σ"]
