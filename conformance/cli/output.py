"""Output of commands: to files, in the format given by their suffixes, and to a terminal or pipe."""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from conformance.cli.streams import unescaped
from conformance.errors import OutputError, UsageError
from conformance.report.document import Document
from conformance.report.output_formats import REPORT_FORMATS
from conformance.report.terminal import PIPED, show

if TYPE_CHECKING:
    from conformance.results.records import Results

TRACE = "safetensors"  # the format of activations, which is no report
_FORMAT_OF = {row.suffix: name for name, row in REPORT_FORMATS.items()} | {f".{TRACE}": TRACE}


def formats_of(outputs: Iterable[Path], formats: Collection[str], read: Iterable[Path] = ()) -> dict[Path, str]:
    """Return the format of each output file; called before any work, so that an invalid path is reported immediately.

    Raises:
        UsageError: the suffix of a file is not that of an allowed format, or the file is a folder or one that the command reads.
    """
    given = {path.resolve() for path in read}
    found = {}
    for path in outputs:
        name = _FORMAT_OF.get(path.suffix.lower(), "")
        if name not in formats:
            raise UsageError(f"{path}: expected a suffix of {', '.join(s for s, name in _FORMAT_OF.items() if name in formats)}")
        if path.is_dir():
            raise UsageError(f"{path} is a folder; give a file")
        if path.resolve() in given:
            raise UsageError(f"{path} is an input of this command; write to another file")
        found[path] = name
    return found


def write(files: Mapping[Path, str], made: Callable[[str], str]) -> None:
    """Write each file in its format; missing folders are created.

    Raises:
        OutputError: files cannot be written; all others are.
    """
    failures = []
    for path, name in files.items():
        text = made(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            failures.append(f"{path} cannot be written: {error.strerror}")
    if failures:
        raise OutputError("\n".join(failures))


def text_of(shown: Document, rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return a document in one of `DOCUMENT_FORMATS`; `rows` are its content for JSON."""
    return json.dumps(rows, indent=2) + "\n" if name == "json" else REPORT_FORMATS[name].of_document(shown)


def show_document(shown: Document, name: str) -> None:
    """Print a document to standard output in the format `pretty` or in a format of documents."""
    if name == "pretty":
        show(shown, console())
    else:
        sys.stdout.write(REPORT_FORMATS[name].of_document(shown))


def show_results(results: "Results", name: str) -> None:
    """Print results to standard output in the format `pretty`, in `long` with what is folded, or in one of `REPORT_FORMATS`."""
    if name in ("pretty", "long"):
        from conformance.report.run import document

        show(document(results), console(), is_long=name == "long")
    else:
        sys.stdout.write(REPORT_FORMATS[name].of_results(results))


def console() -> Console:
    """Return a console for standard output, with the width of COLUMNS or of the terminal, or a fixed width for a pipe."""
    text = os.environ.get("COLUMNS")
    columns = int(text) if text and text.isdecimal() else 0  # rich itself would take a COLUMNS of 0 and print nothing
    is_of_terminal = text is None and sys.stdout.isatty()
    return Console(file=unescaped(sys.stdout), width=columns or (None if is_of_terminal else PIPED), highlight=False)
