"""The HTML page of a run, as text: self-contained, with links that lead to existing places, and the failures stated.

`test_terminal` has hostile texts on it, and `test_browser` opens it."""

import base64
import hashlib
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from conformance.results.records import CaseRecords, Note, Results
from conformance.tests.sample_pages import HOSTILE, sample
from conformance.tests.sample_records import report

VOID = {"meta", "link", "input", "br", "img", "hr", "col", "wbr"}


class Page(HTMLParser):
    """The elements of a page, and its text without styles and scripts; raises if elements are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attribute(self, name: str) -> list[str]:
        return [value for _, found in self.elements if (value := found.get(name)) is not None]


@pytest.fixture(scope="module")
def source() -> str:
    return report("html", sample())


@pytest.fixture(scope="module")
def shown(source: str) -> Page:
    return Page(source)


def _text(source: str) -> str:
    """Return the text of a page without its style and its script."""
    rendered = re.sub(r"<(style|script)>.*?</\1>", "", source, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", rendered)).split())


def test_no_script_can_run_except_the_pages_own_and_nothing_is_requested_from_outside(source: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source
    assert "default-src 'none'" in source
    assert not re.search(r"<[^>]* src=", source)
    assert all(link.startswith("#") or link == "data:," for link in re.findall(r'<[^>]* href="([^"]*)"', source))
    assert not re.search(r"url\(|@import|https?://", re.sub(r"<(p|pre|li)[^>]*>.*?</\1>", "", source, flags=re.S))


def test_every_link_leads_to_an_element_of_the_page_and_ids_are_unique(source: str) -> None:
    places = re.findall(r'<[^>]* id="([^"]*)"', source)
    assert len(places) == len(set(places))
    assert set(re.findall(r'<[^>]* href="#([^"]*)"', source)) <= set(places)


def test_failures_come_first_with_their_place_and_cause(source: str) -> None:
    text, summary = _text(source), _text(source).split("Traceback")[0]
    assert "3 of 5 candidates do not conform" in text
    assert "layer 1, intermediate.intermediate_act_fn: GELU is computed with tanh, where the architecture has erf" in summary
    assert "layer 0, attention.output.LayerNorm: epsilon is 1e-05, the checkpoint says 1e-12" in summary
    assert "repair: Pass the config's layer_norm_eps to every LayerNorm" in summary
    assert "padding-length: " in summary
    assert "usual cause: a LayerNorm left at its default" in text
    assert "missing: the end of" in summary
    assert text.index("does not conform") < text.index("correct on tiny")


def test_an_incomplete_or_empty_run_is_not_shown_as_conforming() -> None:
    def shown(*cases: CaseRecords, notes: tuple[Note, ...] = ()) -> str:
        return _text(report("html", Results((), cases, None, notes)))

    correct = next(case for case in sample().cases if case.check.implementation == "correct")
    assert "all conforms" in shown(correct)
    incomplete = shown(correct, notes=(Note("missing", "the end of a.jsonl"),))
    assert ("all conforms" in incomplete, "incomplete; no failure in what was judged" in incomplete) == (False, True)
    empty = shown(notes=(Note("missing", "the end of it"),))
    assert ("ran 0 of 0" in empty, "missing: the end of it" in empty) == (True, True)


def test_hostile_names_reasons_and_notes_are_escaped(source: str, shown: Page) -> None:
    assert [tag for tag, _ in shown.elements].count("script") == 1
    assert not any(tag == "img" for tag, _ in shown.elements)
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)
    assert shown.text.count(HOSTILE) >= 4  # The summary, the matrix, the card and the note; escaped once.


def test_no_script_can_run_except_the_pages_own(source: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source
    assert "default-src 'none'" in source


def test_the_page_requests_nothing_from_outside(source: str, shown: Page) -> None:
    assert not shown.attribute("src")
    assert all(link.startswith("#") or link == "data:," for link in shown.attribute("href"))
    assert not re.search(r"url\(|@import|https?://", re.sub(r"<(p|pre|li)[^>]*>.*?</\1>", "", source, flags=re.S))
