"""Showing results in the form that is asked for."""

import os
import sys
from collections.abc import Callable, Mapping

import msgspec
from rich.console import Console

from conformance.records import Results
from conformance.report.junit import junit
from conformance.report.markdown import markdown
from conformance.report.telling import footer
from conformance.report.terminal import tell


def _json(results: Results) -> str:
    return msgspec.json.encode(results.checks).decode() + "\n"


PIPED = 160  # columns in a pipe: wide enough for the longest names, so that they can be searched for

TEXTS: Mapping[str, Callable[[Results], str]] = {"json": _json, "markdown": markdown, "junit": junit}


def show(results: Results, how: str) -> None:
    """On standard output: `pretty` (by rich, plain in a pipe), `json`, `markdown` or `junit`."""
    if how in TEXTS:
        sys.stdout.write(TEXTS[how](results))
        return
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=PIPED if piped else None)
    tell(results, results.footer or footer(results.checks), console)
    if results.missing:
        console.print(f"\nmissing of this run: shard {', '.join(results.missing)}", style="bold yellow")
    elif not results.complete:
        console.print("\nThis run was cut short: its file has no footer.", style="bold yellow")
