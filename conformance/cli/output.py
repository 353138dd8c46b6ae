"""Where a command's output goes: into files, in the form that their suffixes say, and on the terminal or in a pipe."""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from conformance.errors import UsageError
from conformance.report.document import Document
from conformance.report.html.page import page
from conformance.report.markdown import markdown
from conformance.report.run.run_document import document
from conformance.report.terminal import plain, show
from conformance.report.views import PIPED, TEXTS
from conformance.results.records import Results

FORMS = ("html", "markdown", "json", "text")  # of what is no run
SUFFIXES = {
    ".html": "html",
    ".md": "markdown",
    ".json": "json",
    ".txt": "text",
    ".xml": "junit",
    ".safetensors": "safetensors",
}


def forms_of(outputs: Iterable[Path], forms: Collection[str], read: Iterable[Path] = ()) -> dict[Path, str]:
    """The form of each file; before any work, since what cannot be written is not worth it.

    Raises:
        UsageError: a suffix says none of `forms`; the file is a folder, or one of those that are read.
    """
    given = {path.resolve() for path in read}
    found = {}
    for path in outputs:
        form = SUFFIXES.get(path.suffix.lower(), "")
        if form not in forms:
            raise UsageError(f"{path}: give it a suffix of {', '.join(s for s, form in SUFFIXES.items() if form in forms)}")
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a file")
        if path.resolve() in given:
            raise UsageError(f"{path} is read; write to another file")
        found[path] = form
    return found


def write(files: Mapping[Path, str], made: Callable[[str], str]) -> None:
    """Each file in its form, in a folder that is made where there is none."""
    for path, form in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made(form), "utf-8")


def text_of(shown: Document, rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """A document in one of `FORMS`; `rows` say the same for a program."""
    match form:
        case "json":
            return json.dumps(rows, indent=2) + "\n"
        case "markdown":
            return markdown(shown)
        case "html":
            return page(shown)
        case _:
            return plain(shown, PIPED)


def show_document(shown: Document, form: str) -> None:
    """Print a document on standard output: `pretty` or `markdown`."""
    if form == "markdown":
        sys.stdout.write(markdown(shown))
    else:
        show(shown, console())


def show_results(results: Results, form: str) -> None:
    """Print results on standard output: `pretty`, or a form of `TEXTS`."""
    if form in TEXTS:
        sys.stdout.write(TEXTS[form](results))
    else:
        show(document(results), console())


def is_piped() -> bool:
    """Whether a program reads standard output, and its width is not set."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ


def console() -> Console:
    """Standard output, as wide as the terminal, or wide enough for a pipe."""
    return Console(width=PIPED if is_piped() else None, highlight=False)
