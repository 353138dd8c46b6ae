"""Results and traces as Python objects: the text of `str(result)`, and what a notebook displays."""

from conformance.checks.trace import Trace
from conformance.report import run, trace_report
from conformance.report.page import fragment
from conformance.report.terminal import MEASURE, plain
from conformance.results.records import Results
from conformance.results.result import Result
from conformance.results.to_records import results_of


def case_text(result: Result) -> str:
    """Return the report of one case as plain text."""
    return plain(run.case_document(result), MEASURE).rstrip()


def displayed(value: Result | Results | Trace) -> str:
    """Return the report of a case, a run or a trace as an HTML fragment for a notebook."""
    if isinstance(value, Trace):
        return fragment(trace_report.document(value))
    return fragment(run.document(results_of([value]) if isinstance(value, Result) else value))
