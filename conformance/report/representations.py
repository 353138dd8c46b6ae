"""Representations of results as Python objects: the text of `str(result)`, and what a notebook shows."""

from conformance.report.page import fragment
from conformance.report.run import case_document, document
from conformance.report.terminal import MEASURE, plain
from conformance.results.records import Results
from conformance.results.result import Result
from conformance.results.to_records import results_of


def case_text(result: Result) -> str:
    """Return the report of one case as plain text."""
    return plain(case_document(result), MEASURE).rstrip()


def results_fragment(results: Results) -> str:
    """Return the report of a run as an HTML fragment for a notebook."""
    return fragment(document(results))


def result_fragment(result: Result) -> str:
    """Return the report of one case as an HTML fragment for a notebook."""
    return results_fragment(results_of([result]))
