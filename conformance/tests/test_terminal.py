"""The report on a narrow and a wide terminal, in a pipe, as Markdown, as a page and in JUnit, with every name escaped."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conformance.faults import BY_NAME
from conformance.report import coverage_sentences
from conformance.report.run import document
from conformance.report.terminal import PIPED, show
from conformance.results.case import Case
from conformance.results.merge import merged
from conformance.results.records import FaultRecord, Note, Results
from conformance.tests.sample_records import activation, checked, everything, report, run

_LOOKED_FOR = (
    *("mask-added-raw", "epsilon", "scale-missing", "gelu-argument"),
    *("class-labels-reversed", "gelu-tanh-constant", "loss-denominator", "next-sentence-order", "token-types-ignored"),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True, scope="module")
def few_mistakes() -> Iterator[None]:
    """Use only the faults listed here as those that a pass may exclude, so that a new fault in the catalogue changes no
    test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage_sentences, "BY_NAME", {name: BY_NAME[name] for name in _LOOKED_FOR})
        yield


def shown(results: Results, width: int, **console: Any) -> str:
    """Return the text shown on a terminal of that width."""
    file = StringIO()
    settings = {"force_terminal": True, "color_system": "truecolor", "legacy_windows": False, **console}
    show(document(results), Console(file=file, width=width, **settings))
    return file.getvalue()


def test_colour_carries_no_information_that_the_words_do_not() -> None:
    in_colour = shown(everything(), PIPED)
    assert "\x1b[" in in_colour
    assert _COLOUR.sub("", in_colour) == report("text", everything())


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_lines_fit_the_width_and_have_no_trailing_spaces(width: int) -> None:
    lines = _COLOUR.sub("", shown(everything(), width)).split("\n")
    long = [rendered for rendered in lines if len(rendered) > width]
    assert not long
    assert not [rendered for rendered in lines if rendered != rendered.rstrip()]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_are_not_split(width: int) -> None:
    results = everything()
    names = {c.implementation for c in results.checks} | {a.activation for a in results.activations}
    names |= {s.fault for c in results.checks for s in c.excludes} | set(_LOOKED_FOR)
    wide, rendered = (shown(results, columns, color_system=None) for columns in (10_000, width))
    assert [name for name in names if name in wide and name not in rendered] == []
    assert len([name for name in names if name in rendered]) > 15


HOSTILE = st.lists(
    st.one_of(
        st.characters(),
        st.sampled_from([*"\x00\x07\x08\t\n\r\x0b\x1b\x7f\x85\x9b\xa0\u200b\u2028\u202e\u2066\ufeff\ud800`|<>&*_[]\\~$"]),
        st.sampled_from(["[bold]", "[/]", "[link=x]", "\x1b[31m", "\x1b]0;x\x07", ":smile:", "```", "</pre>", "[x](y)", "![x](y)"]),
    ),
    max_size=20,
).map("".join)


def results_with(text: str) -> Results:
    """Return records with the text at every place that may contain arbitrary text."""
    case = Case(text, text, text, text, text)
    fault = FaultRecord(text, text, 1.0, 50.0, text, 1.0, 0.1, 2.0)
    broken = activation(case, text, 9.0, batch=text, reason=text, anatomy=[text])
    named = activation(case, text + "x", 9.0, (fault,), batch=text)
    nameless = activation(case, text + "y", 9.0, anatomy=[text])
    several = [checked(Case("a", "b", "c", "d", f"{text}{i}"), tried=3, worst=0.5) for i in range(2)]
    cases = [
        checked(case, "fail", (broken, named, nameless), reason=text),
        checked(Case(text, "other"), "crash", reason=text),
        *several,
    ]
    results = merged([run(*cases, source=text)])
    return Results(results.headers, results.cases, None, (Note("missing", text), Note("duplicate", text)))


@given(HOSTILE)
def test_texts_are_escaped_on_a_terminal(text: str) -> None:
    for width in (40, PIPED):
        rendered = shown(results_with(text), width, color_system=None)
        assert all(c == "\n" or c.isprintable() for c in rendered)
        assert _COLOUR.sub("", shown(results_with(text), width)) == rendered


@given(HOSTILE)
def test_no_text_breaks_the_markdown(text: str) -> None:
    rendered = report("markdown", results_with(text))
    assert all(c == "\n" or c.isprintable() for c in rendered)
    prose = re.sub(r"^(`{3,})[a-z]+\n.*?^\1$", "", rendered, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub("`[\\w .:/*?=-]+`", "", prose)  # code in which nothing is markup
    assert not re.search(r"(?<!\\)(?:\\\\)*[\[\]`~$]", prose), "a link, code or mathematics"
    assert "<" not in re.sub("</?(br|details|summary)>", "", prose)
    for is_table, rows in groupby(prose.split("\n"), lambda line: line.startswith("|")):
        assert not is_table or len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1


@given(HOSTILE)
def test_no_text_breaks_the_junit_file(text: str) -> None:
    suite = ElementTree.fromstring(report("junit", results_with(text)).encode("utf-8", "strict"))[0]
    assert len(suite.findall("testcase")) == int(suite.attrib["tests"])
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"])


class _Tags(HTMLParser):
    """The tags of a page with the names of their attributes; raises if elements are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, ...]] = set()
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, *sorted(name for name, _ in attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@given(HOSTILE)
def test_no_text_breaks_the_page(text: str) -> None:
    html = report("html", results_with(text))
    assert all(c == "\n" or c.isprintable() for c in html)
    optional = {("pre",), ("code",), ("code", "class"), ("small",)}
    assert _Tags(html).tags - optional <= _Tags(report("html", results_with("word"))).tags
