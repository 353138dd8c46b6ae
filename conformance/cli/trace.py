"""`trace`: the walk through a network, printed, and written to files in the form that their suffixes say."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console

from conformance.cli.subject import subject, traced
from conformance.errors import UsageError
from conformance.report.views import PIPED
from conformance.traces.trace import Trace, save
from conformance.traces.walk.markdown import markdown
from conformance.traces.walk.page import html
from conformance.traces.walk.rows import rows
from conformance.traces.walk.terminal import tell
from conformance.traces.walk.walk import Walk, walk

Traces = Sequence[Trace]
SAVED = ".safetensors"


def run(arguments: Namespace) -> int:
    """0 where an activation is shown, else 1."""
    names = [arguments.implementation, *([arguments.other] if arguments.other else [])]
    for path in arguments.output:
        _require_form(path, names)
    golden = subject(arguments, names)
    traces = [traced(name, golden, arguments) for name in names]
    found = walk(*traces)
    for path in arguments.output:
        _write(path, found, traces)
    if arguments.format == "pretty":
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        tell(found, Console(width=PIPED if piped else None, highlight=False), compact=not piped)
    else:
        sys.stdout.write(FORMS[arguments.format](found, traces))
    return 0 if any(passage.steps for passage in found.passages) else 1


def _json(found: Walk, traces: Traces) -> str:
    return json.dumps(rows(found), indent=2) + "\n"


def _markdown(found: Walk, traces: Traces) -> str:
    return markdown(found)


def _plain(found: Walk, traces: Traces) -> str:
    console = Console(file=StringIO(), width=PIPED, color_system=None)
    tell(found, console, compact=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is a StringIO


FORMS: Mapping[str, Callable[[Walk, Traces], str]] = {"json": _json, "markdown": _markdown, "text": _plain, "html": html}
SUFFIXES = {".html": "html", ".md": "markdown", ".json": "json", ".txt": "text"}


def _require_form(path: Path, names: Sequence[str]) -> None:
    """Raise `UsageError` before anything is run for a file that cannot be written."""
    if path.suffix not in (SAVED, *SUFFIXES):
        raise UsageError(f"{path}: give it a suffix of {', '.join((SAVED, *SUFFIXES))}")
    if path.suffix == SAVED and len(names) > 1:
        raise UsageError(f"{path} holds the activations of one implementation; name one, or write .html or .md")


def _write(path: Path, found: Walk, traces: Traces) -> None:
    if path.suffix == SAVED:
        save(traces[0], path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FORMS[SUFFIXES[path.suffix]](found, traces), "utf-8")
