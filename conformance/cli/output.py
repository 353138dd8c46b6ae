"""Output of commands: to files, in the form given by their suffixes, and to a terminal or pipe."""

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

FORMS = ("html", "markdown", "json", "text")  # of documents other than runs
SUFFIXES = {
    ".html": "html",
    ".md": "markdown",
    ".json": "json",
    ".txt": "text",
    ".xml": "junit",
    ".safetensors": "safetensors",
}


def forms_of(outputs: Iterable[Path], forms: Collection[str], read: Iterable[Path] = ()) -> dict[Path, str]:
    """Return the form of each output file; called before any work, so that an invalid path is reported immediately.

    Args:
        outputs: the files to be written.
        forms: the allowed forms.
        read: the files that the command reads.

    Raises:
        UsageError: the suffix of a file is not that of an allowed form, or the file is a folder or one of `read`.
    """
    given = {path.resolve() for path in read}
    found = {}
    for path in outputs:
        form = SUFFIXES.get(path.suffix.lower(), "")
        if form not in forms:
            raise UsageError(f"{path}: expected a suffix of {', '.join(s for s, form in SUFFIXES.items() if form in forms)}")
        if path.is_dir():
            raise UsageError(f"{path} is a folder; give a file")
        if path.resolve() in given:
            raise UsageError(f"{path} is an input of this command; write to another file")
        found[path] = form
    return found


def write(files: Mapping[Path, str], made: Callable[[str], str]) -> None:
    """Write each file in its form; missing folders are created."""
    for path, form in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made(form), "utf-8")


def text_of(shown: Document, rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return a document in one of `FORMS`; `rows` are its content for JSON."""
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
    """Print a document to standard output in the form `pretty` or `markdown`."""
    if form == "markdown":
        sys.stdout.write(markdown(shown))
    else:
        show(shown, console())


def show_results(results: Results, form: str) -> None:
    """Print results to standard output in the form `pretty` or one of `TEXTS`."""
    if form in TEXTS:
        sys.stdout.write(TEXTS[form](results))
    else:
        show(document(results), console())


def is_piped() -> bool:
    """Return whether standard output is not a terminal, and no width is set by the environment variable COLUMNS."""
    return not sys.stdout.isatty() and "COLUMNS" not in os.environ


def console() -> Console:
    """Return a console for standard output, with the width of the terminal, or a fixed width for a pipe."""
    return Console(width=PIPED if is_piped() else None, highlight=False)
