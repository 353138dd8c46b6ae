"""The formats in which a report is written, a row of `REPORT_FORMATS` each.

To add a format, write the function that returns the text of a `report.document.Document`, and add its row. Then add its row to
`IS_REPORT` of `conformance/tests/test_output_formats.py`, and run that file.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from conformance.results.deferred_import import deferred


class ReportFormat(NamedTuple):
    """A format of reports.

    Attributes:
        suffix: the suffix by which `--output` chooses it.
        text: returns the text of a document; what it needs is imported when it is called, so that the command line starts quickly.
        of_runs: whether only the report of a run has this format.
    """

    suffix: str
    text: Callable[[Any], str]
    of_runs: bool = False


REPORT_FORMATS: Mapping[str, ReportFormat] = {
    "html": ReportFormat(".html", deferred("report.page:page")),
    "markdown": ReportFormat(".md", deferred("report.document:markdown")),
    "json": ReportFormat(".json", deferred("report.document:as_json")),
    "text": ReportFormat(".txt", deferred("report.terminal:piped")),
    "junit": ReportFormat(".xml", deferred("report.junit:junit"), of_runs=True),
}
"""The formats by their values for `--format`, in the order in which errors and help list them."""

DOCUMENT_FORMATS = tuple(name for name, row in REPORT_FORMATS.items() if not row.of_runs)
"""Names of the formats of every report."""
