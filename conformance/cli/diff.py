"""The command `diff`: compare two runs, or two candidates activation by activation."""

from argparse import Namespace
from pathlib import Path

from conformance.cli.output import emit
from conformance.errors import UsageError
from conformance.report.document import Document

RESULTS = ".jsonl"


def run(arguments: Namespace) -> int:
    """Run `diff`; return 0 if no difference originates anywhere (results: nothing is worse, gone or a new mistake), else 1."""
    sides = (arguments.a, arguments.b)
    files = [side.endswith(RESULTS) for side in sides]
    if any(files) and not all(files):
        raise UsageError(f"{' and '.join(sides)}: one is a results file and the other is not; give two of the same kind")
    document, code = _of_results(*map(Path, sides)) if all(files) else _of_traces(arguments)
    emit(document, arguments)
    return code


def _of_results(before: Path, after: Path) -> tuple[Document, int]:
    """Compare two results files."""
    from conformance.report.changes import changes
    from conformance.results.file import read_results

    comparison = changes(read_results(before), read_results(after), (str(before), str(after)))
    return comparison.document, comparison.exit_code


def _of_traces(arguments: Namespace) -> tuple[Document, int]:
    """Compare two candidates, traces or goldens."""
    from conformance.cli.trace import in_a_worker, subject, traced
    from conformance.report.difference import compare, document, judged

    golden = subject(arguments, (arguments.a, arguments.b))
    a, b = (traced(side, golden, arguments, in_a_worker) for side in (arguments.a, arguments.b))
    records = (judged(a, golden.checkpoint), judged(b, golden.checkpoint))
    differences = list(compare((a, b), records))
    if all(d.only for d in differences):
        raise UsageError(f"{a.name} and {b.name} expose no activation in common")
    return document(differences, (a, b), records), int(any(d.begins for d in differences))
