"""Output formats of results.

To add a form of output of a run:

1. Write a function of `Results` that returns the text, in a module of this package. A form that shows the report renders each kind
   of block of `report.document`, as `report.markdown` does.
2. Add it to `TEXTS` below.
3. Add its suffix to `conformance.cli.output.SUFFIXES`, for `report --output`, and its name to the `formats` of the command `report`
   in `conformance.cli.arguments`, for `report --format`. `run` and `replay` keep the shared `FORMATS` of that module.
4. Add the suffix to the help of `report --output` (`_add_output` in the same module) and to the README's list of forms.
5. Add it to the test of output files in `conformance/tests/test_diff_report_trace_replay.py`.
"""

from collections.abc import Callable, Mapping

from conformance.report.html.page import fragment, page
from conformance.report.junit import junit
from conformance.report.markdown import markdown
from conformance.report.run.run_document import case_document, document
from conformance.report.structured import structured
from conformance.report.terminal import MEASURE, plain
from conformance.results.records import Results
from conformance.results.result import Result
from conformance.results.to_records import results_of

PIPED = 160  # width in columns of output to a pipe or a file; fits the longest names beside their numbers

TEXTS: Mapping[str, Callable[[Results], str]] = {
    "text": lambda results: plain(document(results), PIPED),
    "json": structured,
    "markdown": lambda results: markdown(document(results)),
    "junit": junit,
    "html": lambda results: page(document(results)),
}


def case_text(result: Result) -> str:
    """Return the report of one case as plain text."""
    return plain(case_document(result), MEASURE).rstrip()


def results_fragment(results: Results) -> str:
    """Return the report of a run as an HTML fragment for a notebook."""
    return fragment(document(results))


def result_fragment(result: Result) -> str:
    """Return the report of one case as an HTML fragment for a notebook."""
    return results_fragment(results_of([result]))
