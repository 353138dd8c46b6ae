"""The HTML page of a run, as text: self-contained, with every text escaped, links that lead to existing places, and the failures
stated."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from conformance.report.document import Span
from conformance.report.drawings import Points
from conformance.report.output_formats import REPORT_FORMATS
from conformance.report.places import network
from conformance.report.run import candidate_checks
from conformance.results.records import CaseRecords, Note, Results
from conformance.tests.sample_pages import HOSTILE, renamed, sample

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
    return REPORT_FORMATS["html"].of_results(sample())


@pytest.fixture(scope="module")
def shown(source: str) -> Page:
    return Page(source)


def test_hostile_names_reasons_and_notes_are_escaped(source: str, shown: Page) -> None:
    assert [tag for tag, _ in shown.elements].count("script") == 1
    assert not any(tag == "img" for tag, _ in shown.elements)
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)
    assert shown.text.count(HOSTILE) >= 4  # The summary, the matrix, the card and the note; escaped once.


def test_the_page_requests_nothing_from_outside(source: str, shown: Page) -> None:
    assert not shown.attribute("src")
    assert all(link.startswith("#") or link == "data:," for link in shown.attribute("href"))
    assert not re.search(r"url\(|@import|https?://", re.sub(r"<(p|pre|li)[^>]*>.*?</\1>", "", source, flags=re.S))


def test_no_script_can_run_except_the_pages_own(source: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source
    assert "default-src 'none'" in source


def test_every_link_leads_to_an_element_of_the_page_and_ids_are_unique(shown: Page) -> None:
    places = shown.attribute("id")
    assert len(places) == len(set(places))
    assert {link[1:] for link in shown.attribute("href") if link.startswith("#")} <= set(places)


def test_failures_come_first_with_their_place_and_cause(shown: Page) -> None:
    text, summary = shown.text, shown.text.split("Traceback")[0]
    assert "3 of 5 candidates do not conform" in text
    assert "layer 1, intermediate.intermediate_act_fn: GELU is computed with tanh, where the architecture has erf" in summary
    assert "layer 0, attention.output.LayerNorm: epsilon is 1e-05, the checkpoint says 1e-12" in summary
    assert "repair: Pass the config's layer_norm_eps to every LayerNorm" in summary
    assert "padding-length: " in summary
    assert "usual cause: a LayerNorm left at its default" in text
    assert "missing: the end of" in summary
    assert text.index("does not conform") < text.index("correct on tiny")


def test_each_activation_is_shown_with_its_limits_and_origins_are_marked() -> None:
    rows = [row for *_, part in network(_case("two-mistakes").activations) for row in part]
    names = {row[0].text: row for row in rows if isinstance(row[0], Span) and row[0].note == "origin"}
    assert list(names) == ["attention.output.LayerNorm", "intermediate.intermediate_act_fn"]
    for name, points, *_ in rows:
        assert isinstance(points, Points)
        if points.band is not None and points.last is not None:
            assert (points.last > points.band) == (name.note == "origin")
    assert any(row[0].note == "not exposed" for row in rows)
    assert {row[2] for row in rows if "dropout" in row[0].text and not row[0].note} == {"exact"}


def test_ten_failing_candidates_on_six_goldens_stay_under_three_megabytes() -> None:
    case = _case("two-mistakes")
    layers = {"tiny": 2, "edges": 2, "deep": 12, "wide": 1, "sinusoidal": 2, "minilm": 6}
    cases = [renamed(_deepened(case, n), f"candidate-{k}", golden=g) for k in range(10) for g, n in layers.items()]
    made = REPORT_FORMATS["html"].of_results(Results((), tuple(cases), None))
    assert len(made.encode()) < 3_000_000
    assert made.count("<article") == 60


def _deepened(case: CaseRecords, layers: int) -> CaseRecords:
    """Return the records of a network with that many layers, all but the first like its second."""
    more = (
        msgspec.structs.replace(a, activation=a.activation.replace("layer.1.", f"layer.{n}."))
        for n in range(2, layers)
        for a in case.activations
        if ".layer.1." in a.activation
    )
    return replace(case, activations=(*case.activations, *more))


def _case(name: str) -> CaseRecords:
    """Return the results of a candidate of the sample."""
    return next(case for case in sample().cases if case.check.implementation == name)


def _page(*cases: CaseRecords, headers: tuple[Any, ...] = (), notes: tuple[Note, ...] = ()) -> Page:
    return Page(REPORT_FORMATS["html"].of_results(Results(headers, cases, None, notes)))


def test_a_skipped_check_does_not_hide_that_the_others_pass() -> None:
    case = _case("correct")
    cases = (renamed(case, "x"), renamed(CaseRecords(case.check, ()), "x", check="tokenization", outcome="skip", reason="none"))
    (group,) = candidate_checks(cases)
    assert (group.outcome, group.tone, "1 skipped" in group.note) == ("pass", "good", True)
    assert candidate_checks(cases[1:])[0].outcome == "skip"


def test_an_incomplete_or_empty_run_is_not_shown_as_conforming() -> None:
    assert "all conforms" in _page(_case("correct")).text
    incomplete = _page(_case("correct"), notes=(Note("missing", "the end of a.jsonl"),)).text
    assert ("all conforms" in incomplete, "incomplete; no failure in what was judged" in incomplete) == (False, True)
    empty = _page(notes=(Note("missing", "the end of it"),)).text
    assert ("ran 0 of 0" in empty, "missing: the end of it" in empty) == (True, True)
