"""The formats in which a report is written, one row of `REPORT_FORMATS` each.

To add a format of output:

1. Write the function that returns its text, in a new module of this package. A format of any report is a function of its
   `report.document.Document` and renders each kind of block, as `report.markdown.markdown` does; a format of runs only is a
   function of their `Results`, as `report.junit.junit` is.
2. Add its row to `REPORT_FORMATS` below: its name, its suffix and the function.
3. Add its row to `IS_REPORT` of `conformance/tests/test_output_formats.py`, and run that file.

Nothing else changes for the reports of `report`, `diff` and `trace`: `--format` of `report` offers every name, and `--output` of
the three commands, with its help, every suffix that they can write. What `run` and the other commands print is one of
`cli.arguments.FORMATS`; what people see in a terminal, `--format pretty`, is no row: `report.terminal.show`.
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
        return str(deferred(self.function)(deferred(_DOCUMENT_OF_A_RUN)(results) if self.renders_documents else results))


_DOCUMENT_OF_A_RUN = "report.run.run_document:document"

REPORT_FORMATS: Mapping[str, ReportFormat] = {
    row.name: row
    for row in (
        ReportFormat("html", ".html", "report.html.page:page"),
        ReportFormat("markdown", ".md", "report.markdown:markdown"),
        ReportFormat("json", ".json", "report.structured:structured", renders_documents=False),
        ReportFormat("text", ".txt", "report.terminal:piped"),
        ReportFormat("junit", ".xml", "report.junit:junit", renders_documents=False),
    )
}
"""The formats by name, in the order in which errors and help list them."""

DOCUMENT_FORMATS = tuple(row.name for row in REPORT_FORMATS.values() if row.renders_documents or row.name == "json")
"""Names of the formats of every report: those of documents, and JSON, for which each report has rows of its own."""
