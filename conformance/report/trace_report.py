"""Document of one trace, or of two side by side: every batch step by step, and on a page the attention; and rows for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from conformance.checks.trace import Trace
from conformance.report.attention import STEPS, attention
from conformance.report.document import Document, Row, Span
from conformance.report.page import fragment
from conformance.report.trace_view import (
    SCORED,
    STATISTICS_NOTE,
    Statistics,
    TracedBatch,
    TracedStep,
    TraceView,
    rendered,
    trace_view,
)

STATISTICS = {"mean": "mean", "deviation": "deviation", "least": "min", "most": "max", "rms": "rms"}


def trace_fragment(trace: Trace) -> str:
    """Return the report of one trace as an HTML fragment for a notebook."""
    return fragment(document(trace_view(trace), (trace,)))


def document(view: TraceView, traces: Sequence[Trace]) -> Document:
    """Return the document: facts, then tokens, steps and predictions of every batch, and on a page the attention maps."""
    letters = "AB" if len(view.names) > 1 else [""]
    a = view.architecture
    sizes = f"{a.num_hidden_layers} layers, width {a.hidden_size}, {a.num_attention_heads} heads, vocabulary of {a.vocab_size}"
    sides = [
        f"{letter}{': ' if letter else ''}{name}, {setting}: exposes {len(shown)} of {len(view.table)} activations"
        for letter, name, setting, shown in zip(letters, view.names, view.settings, view.shown, strict=True)
    ]
    rows, hidden = attention(view, traces)
    title = f"How an input flows through {' and '.join(view.names)}"
    values = {
        "facts": [f"{view.golden}: {sizes}", *sides],
        "heads": [f"{title} {letter}".strip() + ":" for title in STATISTICS.values() for letter in letters],
        "batches": view.batches,
        "several": len(view.batches) > 1,
        "steps": _steps,
        "predictions": lambda traced: _predictions(traced, letters),
        "note": STATISTICS_NOTE,
        "attention": rows,
        "hidden": hidden,
        "shades": ", ".join(f"1/{1 / least:.0f}" for least in STEPS),
    }
    return Document("trace", values, title)


def _predictions(traced: TracedBatch, letters: Sequence[str]) -> list[str]:
    return [
        f"[MASK] at row {b.row}, position {b.position}{f', {letter}' if letter else ''}: "
        + (", ".join(f"{g.token} {g.probability:.3g}" for g in guesses) or "not exposed")
        for b in traced.predictions
        for letter, guesses in zip(letters, b.guesses, strict=True)
    ]


def _steps(traced: TracedBatch) -> list[Row]:
    """Return the rows of a batch, grouped by module; the title of a group and the name of a row form the activation's name."""
    rows: list[Row] = []
    for module, steps in groupby(traced.steps, lambda step: step.row.name.rpartition(".")[0]):
        rows += [(module,)] if module else []
        rows += [_row(step) for step in steps]
    return rows


def _row(step: TracedStep) -> Row:
    module, _, name = step.row.name.rpartition(".")
    numbers = [rendered(getattr(side, statistic) if side else None) for statistic in STATISTICS for side in step.sides]
    parents = ", ".join(parent.removeprefix(f"{module}.") for parent in step.row.parents)
    named = Span(name, "quiet" if step.row.kind == "copy" else "")
    lengths = "×".join(map(str, step.shape)) or "scalar"
    return named, lengths, *numbers, rendered(step.largest), step.row.equation, parents


def rows(view: TraceView) -> list[dict[str, Any]]:
    """Return one row of JSON values for each activation and batch.

    The statistics of the first trace are texts with four significant digits (`-` if the trace does not expose the activation).
    `sides` has the numbers of every trace (null if not exposed), and rows with the scores of a masked-LM head have `predictions`
    for each `[MASK]`.
    """
    return [_step_row(view, traced, step) for traced in view.batches for step in traced.steps]


def _side(name: str, side: Statistics) -> dict[str, Any]:
    """Return the statistics of one trace; values that are not finite, for example after overflow of a square, are null in JSON."""
    return {"name": name, **{n: value if math.isfinite(value) else None for n, value in asdict(side).items()}}


def _step_row(view: TraceView, traced: TracedBatch, step: TracedStep) -> dict[str, Any]:
    name, first = step.row.name, step.sides[0]
    predicted = [asdict(prediction) for prediction in traced.predictions] if name in SCORED else []
    return {
        "activation": name if len(view.batches) == 1 else f"{name} [{traced.name}]",
        "shape": " × ".join(map(str, step.shape)) or "scalar",
        **{statistic: f"{getattr(first, statistic):.4g}" if first else "-" for statistic in STATISTICS},
        "equation": step.row.equation,
        "batch": traced.name,
        "axes": list(step.row.axes),
        "lengths": list(step.shape),
        "parents": list(step.row.parents),
        "layer": step.row.layer,
        "sides": [_side(who, side) if side else None for who, side in zip(view.names, step.sides, strict=True)],
        "largest_difference": step.largest,
        **({"predictions": predicted} if predicted else {}),
    }
