"""The formats in which a report is written, a row of `REPORT_FORMATS` each.

To add a format, write the function that returns the text of a `report.document.Document`, and add its row: its name, its suffix and
the function. Then add its row to `IS_REPORT` of `conformance/tests/test_output_formats.py`, and run that file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.results.deferred_import import deferred

if TYPE_CHECKING:
    from conformance.report.document import Document


@dataclass(frozen=True)
class ReportFormat:
    """A format of reports.

    Attributes:
        name: its value for `--format`.
        suffix: the suffix by which `--output` chooses it.
        function: `module:function` of this package, imported when it is called, so that the command line starts quickly.
        of_runs: whether only the report of a run has this format.
    """

    name: str
    suffix: str
    function: str
    of_runs: bool = False

    def text(self, document: "Document") -> str:
        """Return a report in this format."""
        return str(deferred(self.function)(document))


REPORT_FORMATS: Mapping[str, ReportFormat] = {
    row.name: row
    for row in (
        ReportFormat("html", ".html", "report.page:page"),
        ReportFormat("markdown", ".md", "report.document:markdown"),
        ReportFormat("json", ".json", "report.document:as_json"),
        ReportFormat("text", ".txt", "report.terminal:piped"),
        ReportFormat("junit", ".xml", "report.junit:junit", of_runs=True),
    )
}
"""The formats by name, in the order in which errors and help list them."""

REPORTS_OF_RUNS = tuple(REPORT_FORMATS)
DOCUMENT_FORMATS = tuple(row.name for row in REPORT_FORMATS.values() if not row.of_runs)
"""Names of the formats of every report."""
