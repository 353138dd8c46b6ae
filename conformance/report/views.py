"""Showing results in the form that is asked for."""

import os
import sys
from collections.abc import Callable, Mapping

from rich.console import Console

from conformance.report.junit import junit
from conformance.report.markdown import markdown
from conformance.report.run.run_page import results_page
from conformance.report.structured import structured
from conformance.report.terminal import render, written
from conformance.results.records import Footer, Results
from conformance.results.to_records import footer

PIPED = 160  # columns in a pipe or a file: wide enough for the longest names side by side with their numbers


def plain(results: Results) -> str:
    """What a terminal of `PIPED` columns shows, without colours."""
    return "".join(f"{line.plain}\n" for line in written(results, _footer(results), PIPED))


TEXTS: Mapping[str, Callable[[Results], str]] = {
    "text": plain,
    "json": structured,
    "markdown": markdown,
    "junit": junit,
    "html": results_page,
}


def show(results: Results, how: str) -> None:
    """On standard output: `pretty` (by rich, plain in a pipe), or a form of `TEXTS`."""
    if how in TEXTS:
        sys.stdout.write(TEXTS[how](results))
        return
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    render(results, _footer(results), Console(width=PIPED if piped else None))


def _footer(results: Results) -> Footer:
    return results.footer or footer(results.checks)
