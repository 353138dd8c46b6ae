"""`trace`: the walk through a network, printed, and written to files in the form that their suffixes say."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from io import StringIO

from rich.console import Console

from conformance.checks.trace import Trace, save
from conformance.cli.output import console, forms_of, is_piped, write
from conformance.cli.subject import subject, traced
from conformance.errors import UsageError
from conformance.report.views import PIPED
from conformance.report.walk.markdown import markdown
from conformance.report.walk.rows import rows
from conformance.report.walk.terminal import render
from conformance.report.walk.walk import Walk, walk
from conformance.report.walk.walk_page import html

Traces = Sequence[Trace]
SAVED = "safetensors"


def run(arguments: Namespace) -> int:
    """0 where an activation is shown, else 1."""
    names = [arguments.implementation, *([arguments.other] if arguments.other else [])]
    files = forms_of(arguments.output, (*FORMS, SAVED))
    alone = [path for path, form in files.items() if form == SAVED]
    if alone and len(names) > 1:
        raise UsageError(f"{alone[0]} holds the activations of one implementation; name one, or write .html or .md")
    golden = subject(arguments, names)
    traces = [traced(name, golden, arguments) for name in names]
    found = walk(*traces)
    write({path: form for path, form in files.items() if form != SAVED}, lambda form: FORMS[form](found, traces))
    for path in alone:
        save(traces[0], path)
    if arguments.format == "pretty":
        render(found, console(), compact=not is_piped())
    else:
        sys.stdout.write(FORMS[arguments.format](found, traces))
    return 0 if any(passage.steps for passage in found.passages) else 1


def _json(found: Walk, traces: Traces) -> str:
    return json.dumps(rows(found), indent=2) + "\n"


def _markdown(found: Walk, traces: Traces) -> str:
    return markdown(found)


def _plain(found: Walk, traces: Traces) -> str:
    console = Console(file=StringIO(), width=PIPED, color_system=None)
    render(found, console, compact=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is a StringIO


FORMS: Mapping[str, Callable[[Walk, Traces], str]] = {"json": _json, "markdown": _markdown, "text": _plain, "html": html}
