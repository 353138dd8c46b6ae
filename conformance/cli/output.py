"""Output of commands: to files, in the format given by their suffixes, and to a terminal or pipe."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from conformance.cli.streams import unescaped
from conformance.errors import OutputError, UsageError
from conformance.report.document import Document, Row
from conformance.report.output_formats import REPORT_FORMATS
from conformance.report.terminal import PIPED, show


def require_writable(arguments: Namespace) -> None:
    """Check the files of `--output` before any work.

    Raises:
        UsageError: the suffix of a file is not one of the command's (`arguments.suffixes`), or the file is a folder or one that the
            command reads.
    """
    read = [value for values in vars(arguments).values() for value in (values if isinstance(values, list) else [values])]
    for path in arguments.output:
        if path.suffix.lower() not in arguments.suffixes:
            raise UsageError(f"{path}: expected a suffix of {', '.join(arguments.suffixes)}")
        if path.is_dir():
            raise UsageError(f"{path} is a folder; give a file")
        if any(path.resolve() == Path(p).resolve() for p in read if isinstance(p, str | Path) and p is not path):
            raise UsageError(f"{path} is an input of this command; write to another file")


def emit(report: Document, arguments: Namespace) -> None:
    """Write a report to the files of `--output` or, if there are none, print it in the format of `--format`.

    Files of other suffixes than those of reports are left to the command.
    """
    formats = {row.suffix: name for name, row in REPORT_FORMATS.items()}
    write({path: formats[path.suffix.lower()] for path in arguments.output if path.suffix.lower() in formats}, report)
    if not arguments.output:
        print_report(report, arguments.format)


def write(files: dict[Path, str], report: Document) -> None:
    """Write a report to each file, in its format; missing folders are created.

    Raises:
        OutputError: files cannot be written; all others are.
    """
    failures = []
    for path, name in files.items():
        text = REPORT_FORMATS[name].text(report)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as error:
            failures.append(f"{path} cannot be written: {error.strerror}")
    if failures:
        raise OutputError("\n".join(failures))


def print_report(report: Document, name: str) -> None:
    """Print a report in the format `pretty`, in `long` with what is folded, or in one of `REPORT_FORMATS`."""
    if name in ("pretty", "long"):
        show(report, console(), is_long=name == "long")
    else:
        sys.stdout.write(REPORT_FORMATS[name].text(report))


def rows_document(rows: Sequence[dict[str, Any]]) -> Document:
    """Return a report of rows with the same keys."""
    cells: list[Row] = [list(map(str, row.values())) for row in rows]
    return Document("names", {"tables": [("", list(rows[0]), cells)] if rows else []}, data=rows)


def console() -> Console:
    """Return a console for standard output, with the width of COLUMNS or of the terminal, or a fixed width for a pipe."""
    text = os.environ.get("COLUMNS")
    columns = int(text) if text and text.isdecimal() else 0  # rich itself would take a COLUMNS of 0 and print nothing
    is_of_terminal = text is None and sys.stdout.isatty()
    return Console(file=unescaped(sys.stdout), width=columns or (None if is_of_terminal else PIPED), highlight=False)
