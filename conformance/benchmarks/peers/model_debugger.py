"""Hugging Face's model debugger, which writes a summary of every module's inputs and outputs as JSON.

It has no comparison, so the two files are compared as text.
https://huggingface.co/docs/transformers/internal/model_debugging_utils
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.benchmarks.subject import Subject


def model_debugger(reference: Subject, candidate: Subject, folder: Path) -> str | None:
    """Return the first module whose outputs differ in the two summaries."""
    expected = dict(_outputs(_summary(reference, folder / "reference")))
    found = _outputs(_summary(candidate, folder / "candidate"))
    return next((path for path, outputs in found if expected.get(path) != outputs), None)


def _summary(subject: Subject, folder: Path) -> dict[str, Any]:
    from transformers.model_debugging_utils import model_addition_debugger_context

    with model_addition_debugger_context(subject.bert, debug_path=str(folder), do_prune_layers=False):
        subject.plain()
    (file,) = folder.glob("*_SUMMARY.json")
    return dict(json.loads(file.read_text("utf-8")))


def _outputs(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for child in node.get("children", ()):
        yield from _outputs(child)
    yield node["module_path"], node.get("outputs")
