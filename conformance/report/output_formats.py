"""The formats in which a report is written, one row of `REPORT_FORMATS` each, and what Python shows of results.

To add a format of output, write the function that returns its text and add its row: its name, its suffix and the function. A format
of any report is a function of its `report.document.Document`; a format of runs only is a function of their `Results`, as
`report.junit.junit` is. Then add its row to `IS_REPORT` of `conformance/tests/test_output_formats.py`, and run that file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.results.deferred_import import deferred

if TYPE_CHECKING:
    from conformance.report.document import Document
    from conformance.results.records import Results


@dataclass(frozen=True)
class ReportFormat:
    """A format of reports.

    Attributes:
        name: its value for `--format`.
        suffix: the suffix by which `--output` chooses it.
        function: `module:function` of this package, imported when it is called, so that the command line starts quickly.
        renders_documents: whether the function's argument is the `Document` of any report; otherwise it is the `Results` of runs.
    """

    name: str
    suffix: str
    function: str
    renders_documents: bool = True

    def of_document(self, document: "Document") -> str:
        """Return a report in this format, which must be one of documents."""
        if not self.renders_documents:
            raise ValueError(f"{self.name} is a format of runs, and of no other report")
        return str(deferred(self.function)(document))

    def of_results(self, results: "Results") -> str:
        """Return the report on runs in this format."""
        return str(deferred(self.function)(deferred("report.run:document")(results) if self.renders_documents else results))


REPORT_FORMATS: Mapping[str, ReportFormat] = {
    row.name: row
    for row in (
        ReportFormat("html", ".html", "report.page:page"),
        ReportFormat("markdown", ".md", "report.document:markdown"),
        ReportFormat("json", ".json", "report.structured:structured", renders_documents=False),
        ReportFormat("text", ".txt", "report.terminal:piped"),
        ReportFormat("junit", ".xml", "report.junit:junit", renders_documents=False),
    )
}
"""The formats by name, in the order in which errors and help list them."""

DOCUMENT_FORMATS = tuple(row.name for row in REPORT_FORMATS.values() if row.renders_documents or row.name == "json")
"""Names of the formats of every report: those of documents, and JSON, for which each report has rows of its own."""
