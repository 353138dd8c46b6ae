"""The command `trace`: print the activations of an input step by step, and write them to files in the format of their suffixes."""

import sys
from argparse import Namespace

from conformance.checks.trace import save
from conformance.cli.output import TRACE, formats_of, show_document, text_of, write
from conformance.cli.traced_subject import subject, traced
from conformance.errors import UsageError
from conformance.report.output_formats import DOCUMENT_FORMATS
from conformance.report.trace.trace_document import document, rows
from conformance.report.trace.trace_view import trace_view


def run(arguments: Namespace) -> int:
    """Run `trace`; return 0 if there is an activation to show, else 1."""
    names = [arguments.implementation, *([arguments.other] if arguments.other else [])]
    files = formats_of(arguments.output, (*DOCUMENT_FORMATS, TRACE))
    alone = [path for path, name in files.items() if name == TRACE]
    if alone and len(names) > 1:
        raise UsageError(f"{alone[0]} holds the activations of one implementation; give only one, or write .html or .md")
    golden = subject(arguments, names)
    traces = [traced(name, golden, arguments) for name in names]
    found = trace_view(*traces)
    made, steps = document(found, traces), rows(found)
    write({path: name for path, name in files.items() if name != TRACE}, lambda name: text_of(made, steps, name))
    for path in alone:
        save(traces[0], path)
    if arguments.format == "pretty":
        show_document(made, "pretty")
    else:
        sys.stdout.write(text_of(made, steps, arguments.format))
    return 0 if steps else 1
