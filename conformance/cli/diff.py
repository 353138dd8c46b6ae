"""The command `diff`: compare two runs, or two candidates activation by activation; print the result or write it to files."""

import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cli.output import formats_of, show_document, text_of, write
from conformance.errors import UsageError
from conformance.report.document import Document
from conformance.report.output_formats import DOCUMENT_FORMATS

RESULTS = ".jsonl"


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: a document for users, rows for programs, and the exit code."""

    document: Document
    rows: list[dict[str, Any]]
    exit_code: int


def run(arguments: Namespace) -> int:
    """Run `diff`; return 0 if no difference originates anywhere (results: nothing is worse, gone or a new mistake), else 1."""
    sides = (arguments.a, arguments.b)
    _require_two_of_a_kind(sides)
    files = formats_of(arguments.output, DOCUMENT_FORMATS, map(Path, sides))
    rendered = _of_results(*map(Path, sides)) if all(map(_is_results, sides)) else _of_traces(arguments)
    write(files, lambda name: text_of(rendered.document, rendered.rows, name))
    if not arguments.output and arguments.format == "pretty":
        show_document(rendered.document, "pretty")
    elif not arguments.output:
        sys.stdout.write(text_of(rendered.document, rendered.rows, arguments.format))
    return rendered.exit_code


def _is_results(side: str) -> bool:
    return side.endswith(RESULTS)


def _require_two_of_a_kind(sides: tuple[str, str]) -> None:
    """Raise `UsageError`, before anything is run, if only one side is a results file."""
    if any(map(_is_results, sides)) and not all(map(_is_results, sides)):
        raise UsageError(f"{' and '.join(sides)}: one is a results file and the other is not; give two of the same kind")


def _of_results(before: Path, after: Path) -> Comparison:
    """Compare two results files."""
    from conformance.report.changes import changes
    from conformance.report.changes_report import document, rows
    from conformance.results.file import read_results

    found = changes(read_results(before), read_results(after), (str(before), str(after)))
    return Comparison(document(found), rows(found), found.exit_code)


def _of_traces(arguments: Namespace) -> Comparison:
    """Compare two candidates, traces or goldens."""
    from conformance.cli.trace import in_a_worker, subject, traced
    from conformance.report.difference import compare, judged
    from conformance.report.difference_report import difference_view, document, rows

    golden = subject(arguments, (arguments.a, arguments.b))
    a, b = (traced(side, golden, arguments, in_a_worker) for side in (arguments.a, arguments.b))
    records = (judged(a, golden.checkpoint), judged(b, golden.checkpoint))
    failed = {(r.batch, r.activation) for side in records for r in side if r.outcome == "fail"}
    found = list(compare(a, b, golden.checkpoint, failed))
    if all(d.only for d in found):
        raise UsageError(f"{a.name} and {b.name} expose no activation in common")
    view = difference_view(found, (a, b), records)
    return Comparison(document(view), rows(view), view.exit_code)
