"""`diff`: two runs, or two candidates activation by activation, printed or written to files in the form that their suffixes say."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cli.output import forms_of, show_document, write
from conformance.errors import UsageError
from conformance.report.document import Document
from conformance.report.markdown import markdown
from conformance.report.terminal import plain
from conformance.report.views import PIPED

RESULTS = ".jsonl"
FORMS = ("html", "markdown", "json", "text")


@dataclass(frozen=True)
class Comparison:
    """What was found, in the forms that it can be shown in."""

    document: Document
    rows: list[dict[str, Any]]
    page: Callable[[], str]
    exit_code: int

    def text(self, form: str) -> str:
        """As `html`, `markdown`, `json` or `text`."""
        if form == "html":
            return self.page()
        if form == "json":
            return json.dumps(self.rows, indent=2) + "\n"
        if form == "markdown":
            return markdown(self.document)
        return plain(self.document, PIPED)


def run(arguments: Namespace) -> int:
    """0 where nothing begins to differ (of results: nothing is worse or gone, and no mistake appeared), else 1."""
    sides = (arguments.a, arguments.b)
    _require_two_of_a_kind(sides)
    files = forms_of(arguments.output, FORMS, map(Path, sides))
    rendered = _of_results(*map(Path, sides)) if all(map(_is_results, sides)) else _of_traces(arguments)
    write(files, rendered.text)
    if not arguments.output and arguments.format == "pretty":
        show_document(rendered.document, "pretty")
    elif not arguments.output:
        sys.stdout.write(rendered.text(arguments.format))
    return rendered.exit_code


def _is_results(side: str) -> bool:
    return side.endswith(RESULTS)


def _require_two_of_a_kind(sides: tuple[str, str]) -> None:
    """Raise `UsageError`, before anything is run, where one side is a results file and the other is none."""
    if any(map(_is_results, sides)) and not all(map(_is_results, sides)):
        raise UsageError(f"{' and '.join(sides)}: one is a results file and the other is none; give two of a kind")


def _of_results(before: Path, after: Path) -> Comparison:
    """Two runs."""
    from conformance.report.changes.between import changes
    from conformance.report.changes.changes_document import document
    from conformance.report.changes.changes_page import changes_page
    from conformance.report.changes.rows import rows
    from conformance.results.file import read_results

    found = changes(read_results(before), read_results(after), (str(before), str(after)))
    return Comparison(document(found), rows(found), lambda: changes_page(found), found.exit_code)


def _of_traces(arguments: Namespace) -> Comparison:
    """Two candidates, traces or goldens."""
    from conformance.cli.subject import in_a_worker, subject, traced
    from conformance.report.side_by_side.difference import compare
    from conformance.report.side_by_side.difference_document import document, rows
    from conformance.report.side_by_side.difference_page import side_by_side_page
    from conformance.report.side_by_side.view import side_by_side
    from conformance.report.trace_mistakes import judged

    golden = subject(arguments, (arguments.a, arguments.b))
    a, b = (traced(side, golden, arguments, in_a_worker) for side in (arguments.a, arguments.b))
    found = list(compare(a, b, golden.checkpoint))
    if all(d.only for d in found):
        raise UsageError(f"{a.name} and {b.name} expose no activation in common")
    view = side_by_side(found, (a, b), (judged(a, golden.checkpoint), judged(b, golden.checkpoint)))
    return Comparison(document(view), rows(view), lambda: side_by_side_page(view), view.exit_code)
