"""Document of one trace, or of two side by side: every batch step by step, with predictions for each `[MASK]`. Pure functions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks.trace import Trace, require_same_inputs
from conformance.goldens.custom_golden import PREFIX
from conformance.judge.judged_elements import judged_elements
from conformance.model.activation import Activation
from conformance.model.batch import Batch
from conformance.model.tokenizer import words
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.report.document import Document, Row, Span
from conformance.report.page import fragment
from conformance.report.places import Token

MASK = "[MASK]"  # BERT's token for a masked position (Devlin et al. 2019, section 3.1)
MOST = 5  # number of predictions for each
SCORED = ("cls.predictions.decoder", "cls.predictions.log_probs")  # logits and log-probabilities have the same softmax


@dataclass(frozen=True)
class Statistics:
    """Mean, population standard deviation, extremes and root mean square of the judged elements of an activation.

    If none is judged, they are those of all elements.
    """

    mean: float
    deviation: float
    min: float
    max: float
    rms: float


@dataclass(frozen=True)
class TracedStep:
    """One activation of a trace, or of two.

    Attributes:
        row: entry in the table of activations, with name, equation, axes and parents.
        sides: statistics for each trace; None for a trace that does not expose the activation.
        largest: largest absolute difference between two traces over the judged elements; None unless two traces expose it.
    """

    row: Activation
    shape: tuple[int, ...]
    sides: tuple[Statistics | None, ...]
    largest: float | None


@dataclass(frozen=True)
class TracedBatch:
    """A batch, its tokens row by row, its steps in the order of computation, and the predictions for each `[MASK]`.

    `predictions` has, by row and position, for each trace its most probable tokens with their probabilities, which are empty if the
    trace does not expose scores. `of` is the number of activations that the batch defines.
    """

    name: str
    batch: Batch
    tokens: list[list[Token]]
    steps: list[TracedStep]
    predictions: dict[tuple[int, int], list[dict[str, float]]]
    of: int


def trace_fragment(trace: Trace) -> str:
    """Return the report of one trace as an HTML fragment for a notebook."""
    return fragment(document(trace))


def document(*traces: Trace) -> Document:
    """Return the document of one trace, or of two side by side: facts, then tokens, steps and predictions of every batch.

    Raises:
        UsageError: two traces did not run on the same inputs.
    """
    first = traces[0]
    for other in traces[1:]:
        require_same_inputs(first, other)
    batches = [traced_batch(name, *traces) for name in first.batches]
    letters = "AB" if len(traces) > 1 else [""]
    view = {
        "network": Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden,
        "architecture": first.architecture,
        "sides": [(letter, t, _exposed(t, batches)) for letter, t in zip(letters, traces, strict=True)],
        "heads": [f"{name} {letter}".strip() + ":" for name in Statistics.__annotations__ for letter in letters],
        "batches": [(batch, _rows(batch.steps)) for batch in batches],
    }
    title = f"How an input flows through {' and '.join(t.name for t in traces)}"
    return Document("trace", view, title, data=[row for batch in batches for row in _data(batch, traces)])


def _exposed(trace: Trace, batches: Sequence[TracedBatch]) -> str:
    names = {name for found in trace.activations.values() for name in found}
    return f"{len(names)} of {max(batch.of for batch in batches)}"


def traced_batch(name: str, *traces: Trace) -> TracedBatch:
    """Return what the report says of a batch."""
    batch = traces[0].batches[name]
    folder = next((t.folder for t in traces if t.folder), None)
    network, read = Network(traces[0].architecture, {}, batch), words(folder, batch)
    found = [t.activations[name] for t in traces]
    texts = read or [[str(i) for i in row] for row in batch.input_ids]
    tokens = [
        [
            Token(text, not attended, "marked" if read is not None and text == MASK else "underlined" if kind else "")
            for text, kind, attended in zip(*row, strict=True)
        ]
        for row in zip(texts, batch.types, batch.mask, strict=True)
    ]
    return TracedBatch(name, batch, tokens, list(_steps(network, found)), _predictions(read, found, folder), len(network.table))


def _steps(network: Network, found: Sequence[Mapping[str, Array]]) -> Iterator[TracedStep]:
    for name, row in network.table.items():
        values = [side.get(name) for side in found]
        shape = next((v.shape for v in values if v is not None), None)
        if shape is None:
            continue
        judged = judged_elements(row, network.batch, shape)
        kept = [None if v is None else v[judged] if judged.any() else v for v in values]
        both = [x for x in kept if x is not None]
        largest = float(np.abs(both[0] - both[1]).max()) if len(both) > 1 else None
        yield TracedStep(row, shape, tuple(None if x is None else _statistics(x) for x in kept), largest)


def _statistics(x: Array) -> Statistics:
    return Statistics(float(x.mean()), float(x.std()), float(x.min()), float(x.max()), float(np.sqrt(np.mean(x**2))))


def _predictions(
    read: list[list[str]] | None, found: Sequence[Mapping[str, Array]], folder: Path | None
) -> dict[tuple[int, int], list[dict[str, float]]]:
    """Return the predictions for every `[MASK]`; none without a tokenizer or the scores of a masked-LM head."""
    scores = [next((side[name] for name in SCORED if name in side), None) for side in found]
    places = [(row, at) for row, tokens in enumerate(read or ()) for at, token in enumerate(tokens) if token == MASK]
    if all(side is None for side in scores):
        return {}
    return {place: [{} if side is None else _likeliest(side[place], folder) for side in scores] for place in places}


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
        rows += [_row(step, module) for step in of_module]
    return rows


def _row(step: TracedStep, module: str) -> Row:
    numbers = [rendered(getattr(side, name) if side else None) for name in Statistics.__annotations__ for side in step.sides]
    parents = ", ".join(parent.removeprefix(f"{module}.") for parent in step.row.parents)
    named = Span(step.row.name.rpartition(".")[2], "quiet" if step.row.kind == "copy" else "")
    return named, "×".join(map(str, step.shape)) or "scalar", *numbers, rendered(step.largest), step.row.equation, parents


def rendered(value: float | None) -> str:
    """Return a number with about three significant digits in at most eight characters; `-` for None."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0.0 or 1e-3 <= size < 1e3 or not np.isfinite(size):
        return f"{value:.3g}"
    if 1e3 <= size < 1e5:
        return f"{value:.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _data(traced: TracedBatch, traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """Yield a row for each activation; those with the scores of a masked-LM head have `predictions`."""
    for step in traced.steps:
        yield {
            "batch": traced.name,
            "activation": step.row.name,
            "axes": list(step.row.axes),
            "lengths": list(step.shape),
            "equation": step.row.equation,
            "parents": list(step.row.parents),
            "layer": step.row.layer,
            "sides": [side and {"name": t.name, **asdict(side)} for t, side in zip(traces, step.sides, strict=True)],
            "largest_difference": step.largest,
            "predictions": [
                {"row": row, "position": position, "guesses": guesses}
                for (row, position), guesses in traced.predictions.items()
                if step.row.name in SCORED
            ],
        }
