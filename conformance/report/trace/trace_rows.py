"""Rows of one trace or two for programs, one for each activation and batch. A pure function of the view."""

import math
from dataclasses import asdict
from typing import Any

from conformance.report.trace.parts import times
from conformance.report.trace.predictions import SCORED
from conformance.report.trace.trace_document import STATISTICS
from conformance.report.trace.trace_view import Statistics, TracedBatch, TracedStep, TraceView


def rows(view: TraceView) -> list[dict[str, Any]]:
    """Return one row of JSON values for each activation and batch.

    The statistics of the first trace are texts with four significant digits (`-` if the trace does not expose the activation).
    `sides` has the numbers of every trace (null if not exposed), and rows with the scores of a masked-LM head have `predictions`
    for each `[MASK]`.
    """
    return [_row(view, traced, step) for traced in view.batches for step in traced.steps]


def _side(name: str, side: Statistics) -> dict[str, Any]:
    """Return the statistics of one trace; values that are not finite, for example after overflow of a square, are null in JSON."""
    return {"name": name, **{n: value if math.isfinite(value) else None for n, value in asdict(side).items()}}


def _row(view: TraceView, traced: TracedBatch, step: TracedStep) -> dict[str, Any]:
    name, first = step.row.name, step.sides[0]
    predicted = [asdict(prediction) for prediction in traced.predictions] if name in SCORED else []
    return {
        "activation": name if len(view.batches) == 1 else f"{name} [{traced.name}]",
        "shape": times(step.shape),
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
