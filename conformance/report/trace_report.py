"""Document of a trace: every batch step by step, with predictions for each `[MASK]`. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformance.checks.trace import Trace
from conformance.goldens.custom_golden import PREFIX
from conformance.judge.judged_elements import judged_elements
from conformance.model.activation import Activation
from conformance.model.batch import Batch
from conformance.model.tokenizer import words
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.report.document import Document, Row, Span
from conformance.report.places import Token

MASK = "[MASK]"  # BERT's token for a masked position (Devlin et al. 2019, section 3.1)
MOST = 5  # number of predictions for each
SCORED = ("cls.predictions.decoder", "cls.predictions.log_probs")  # logits and log-probabilities have the same softmax


class Statistics(NamedTuple):
    """Mean, population standard deviation, extremes and root mean square of the judged elements of an activation.

    If none is judged, they are those of all elements.
    """

    mean: float
    deviation: float
    min: float
    max: float
    rms: float


class TracedStep(NamedTuple):
    """One activation of a trace: its row in the table of activations, its shape and its statistics."""

    row: Activation
    shape: tuple[int, ...]
    statistics: Statistics


@dataclass(frozen=True)
class TracedBatch:
    """A batch, its tokens row by row, its steps in the order of computation, and the predictions for each `[MASK]`.

    `predictions` has by row and position the most probable tokens with their probabilities; it is empty if the trace does not
    expose scores. `of` is the number of activations that the batch defines.
    """

    name: str
    batch: Batch
    tokens: list[list[Token]]
    steps: list[TracedStep]
    predictions: dict[tuple[int, int], dict[str, float]]
    of: int


def document(trace: Trace) -> Document:
    """Return the document of a trace: facts, then tokens, steps and predictions of every batch."""
    batches = [traced_batch(trace, name) for name in trace.batches]
    exposed = {name for values in trace.activations.values() for name in values}
    view = {
        "network": Path(trace.golden).name if trace.golden.startswith(PREFIX) else trace.golden,
        "architecture": trace.architecture,
        "trace": trace,
        "exposed": f"{len(exposed)} of {max(batch.of for batch in batches)}",
        "heads": [f"{name}:" for name in Statistics._fields],
        "batches": [(batch, _rows(batch.steps)) for batch in batches],
    }
    title = f"How an input flows through {trace.name}"
    return Document("trace", view, title, data=[row for batch in batches for row in _data(batch)])


def traced_batch(trace: Trace, name: str) -> TracedBatch:
    """Return what the report says of a batch."""
    batch, values, table = trace.batches[name], trace.activations[name], Network(trace.architecture, {}, trace.batches[name]).table
    read = words(trace.folder, batch)
    tokens = [
        [
            Token(text, not attended, "marked" if read is not None and text == MASK else "underlined" if kind else "")
            for text, kind, attended in zip(*row, strict=True)
        ]
        for row in zip(read or batch.input_ids.astype(str), batch.types, batch.mask, strict=True)
    ]
    steps = [
        TracedStep(row, values[step].shape, _statistics(values[step], row, batch)) for step, row in table.items() if step in values
    ]
    return TracedBatch(name, batch, tokens, steps, _predictions(read, values, trace.folder), len(table))


def _statistics(value: Array, row: Activation, batch: Batch) -> Statistics:
    judged = judged_elements(row, batch, value.shape)
    x = value[judged] if judged.any() else value
    return Statistics(float(x.mean()), float(x.std()), float(x.min()), float(x.max()), float(np.sqrt(np.mean(x**2))))


def _predictions(
    read: list[list[str]] | None, values: Mapping[str, Array], folder: Path | None
) -> dict[tuple[int, int], dict[str, float]]:
    """Return the predictions for every `[MASK]`; none without a tokenizer or the scores of a masked-LM head."""
    scores = next((values[name] for name in SCORED if name in values), None)
    places = [(row, at) for row, tokens in enumerate(read or ()) for at, token in enumerate(tokens) if token == MASK]
    return {} if scores is None else {place: _likeliest(scores[place], folder) for place in places}


def _likeliest(scores: Array, folder: Path | None) -> dict[str, float]:
    """Return the most probable tokens of scores (vocabulary,); ties are in the order of ids.

    The probabilities are the softmax in float64, exp(s − max s) / Σ exp(s − max s).
    """
    weights = np.exp(scores - scores.max())
    best = np.argsort(-weights, kind="stable")[None, :MOST]
    tokens = words(folder, Batch.of({"input_ids": best})) or best.astype(str)
    return {str(token): float(p) for token, p in zip(tokens[0], weights[best[0]] / weights.sum(), strict=True)}


def _rows(steps: Sequence[TracedStep]) -> list[Row]:
    """Return the rows of a batch, grouped by module; the title of a group and the name of a row form the activation's name."""
    rows: list[Row] = []
    for module, of_module in groupby(steps, lambda step: step.row.name.rpartition(".")[0]):
        rows += [(module,)] if module else []
        for row, shape, statistics in of_module:
            name = Span(row.name.rpartition(".")[2], "quiet" if row.kind == "copy" else "")
            parents = ", ".join(parent.removeprefix(f"{module}.") for parent in row.parents)
            rows.append((name, "×".join(map(str, shape)) or "scalar", *map(rendered, statistics), row.equation, parents))
    return rows


def rendered(value: float) -> str:
    """Return a number with about three significant digits in at most eight characters."""
    size = abs(value)
    if size == 0.0 or 1e-3 <= size < 1e3 or not np.isfinite(size):
        return f"{value:.3g}"
    if 1e3 <= size < 1e5:
        return f"{value:.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _data(traced: TracedBatch) -> Iterator[dict[str, Any]]:
    """Yield a row for each activation; those with the scores of a masked-LM head have `predictions`."""
    for row, shape, statistics in traced.steps:
        predictions = traced.predictions if row.name in SCORED else {}
        yield {
            "batch": traced.name,
            "activation": row.name,
            "axes": list(row.axes),
            "lengths": list(shape),
            "equation": row.equation,
            "parents": list(row.parents),
            "layer": row.layer,
            "statistics": statistics._asdict(),
            "predictions": [{"row": r, "position": p, "guesses": guesses} for (r, p), guesses in predictions.items()],
        }
