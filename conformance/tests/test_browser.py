"""Every HTML page in headless Chromium: no console messages, no requests, narrow windows, printing, and
without scripts."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.tests.sample_pages import HOSTILE, changes_shown, difference_shown, sample, trace_shown
from conformance.tests.sample_records import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]

playwright = pytest.importorskip("playwright.sync_api", reason="pages are opened by the tox factor `browser`, which has playwright")
if not CHROMIUM and os.environ.get("CI"):
    raise RuntimeError("CI needs a Chromium for the pages: apt-get install chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium")

PAGES: dict[str, Callable[[], str]] = {
    "results": lambda: report("html", sample()),
    "changes": changes_shown,
    "difference": difference_shown,
    "trace": trace_shown,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module", params=PAGES)
def file(request: pytest.FixtureRequest, folder: Path) -> Path:
    path: Path = folder / f"{request.param}.html"
    path.write_text(PAGES[request.param](), "utf-8")
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> Path:
    path = folder / "results.html"
    path.write_text(PAGES["results"](), "utf-8")
    return path


class Watched:
    """An open page, its console messages, and the requests that it made."""

    def __init__(self, browser: Any, path: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def test_a_page_logs_nothing_requests_nothing_but_itself_and_shows_hostile_texts_as_text(browser: Any, file: Path) -> None:
    with Watched(browser, file) as watched:
        watched.page.wait_for_load_state("networkidle")
        assert watched.said == []
        assert [url for url in watched.asked if not url.startswith("data:")] == [file.as_uri()]
        assert HOSTILE in watched.page.locator("main").text_content()
        assert watched.page.evaluate("[typeof hacked, document.images.length]") == ["undefined", 0]


def test_at_400_pixels_no_page_scrolls_sideways(browser: Any, file: Path) -> None:
    with Watched(browser, file, viewport={"width": 400, "height": 800}) as watched:
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_every_link_leads_to_a_visible_element(browser: Any, file: Path) -> None:
    with Watched(browser, file) as watched:
        links = watched.page.locator("main a[href^='#']")
        for n in range(min(links.count(), 6)):
            target = links.nth(n).get_attribute("href")
            links.nth(n).click()
            top = watched.page.evaluate("id => document.getElementById(id).getBoundingClientRect().top", target[1:])
            assert -1 <= top < watched.page.viewport_size["height"], target


def test_without_scripts_the_page_has_the_same_text_and_no_controls_that_do_nothing(browser: Any, file: Path) -> None:
    texts = []
    for enabled in (True, False):
        context = browser.new_context(java_script_enabled=enabled)
        page = context.new_page()
        page.goto(file.as_uri())
        texts.append([" ".join(t.split()) for t in page.locator("h1, h2, h3, h4, th, td").all_text_contents()])
        if not enabled:
            assert not any(control.is_visible() for control in page.locator("button, input, select").all())
        context.close()
    assert texts[0] == texts[1]


def test_every_picture_and_every_field_has_an_accessible_name(browser: Any, file: Path) -> None:
    unnamed = """[...document.querySelectorAll("svg, input, select")].filter(e => e.checkVisibility()
        && !e.closest("[aria-hidden=true]") && !e.getAttribute("aria-label") && !e.closest("label")).map(e => e.outerHTML)"""
    with Watched(browser, file) as watched:
        assert watched.page.evaluate(unnamed) == []
        levels = [int(h) for h in watched.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName[1])")]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_the_content_and_folded_sections_are_reached_by_keyboard(browser: Any, results: Path) -> None:
    with Watched(browser, results) as watched:
        watched.page.keyboard.press("Tab")
        assert watched.page.evaluate("document.activeElement.getAttribute('href')") == "#content"
        summary = watched.page.locator("summary").first
        before = summary.evaluate("s => s.parentElement.open")
        summary.focus()
        watched.page.keyboard.press("Enter")
        assert summary.evaluate("s => s.parentElement.open") is not before


def test_a_button_copies_the_script(browser: Any, results: Path) -> None:
    with Watched(browser, results, permissions=["clipboard-read", "clipboard-write"]) as watched:
        watched.page.locator("pre .copy").first.click()
        watched.page.wait_for_function("[...document.querySelectorAll('.copy')].some(b => b.textContent === 'Copied')")
        assert watched.said == []
