"""Statistics of every step and predictions for every `[MASK]` of one trace, or of two on the same inputs. Pure functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.checks.trace import Trace, require_same_inputs
from conformance.goldens.custom_golden import PREFIX
from conformance.judge.judged_elements import judged_elements
from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.tokenizer import words
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.report.places import Token

MASK = "[MASK]"  # BERT's token for a masked position (Devlin et al. 2019, section 3.1)
MOST = 5
SCORED = ("cls.predictions.decoder", "cls.predictions.log_probs")  # logits and log-probabilities have the same softmax

STATISTICS_NOTE = (
    "Statistics are over real tokens, not padding (in attention: real keys of real queries); where an activation has none, over "
    "all of it. rms is the root of the mean square."
)


@dataclass(frozen=True)
class Statistics:
    """Mean, population standard deviation, extremes and root mean square of the judged elements of an activation.

    If none is judged, they are those of all elements.
    """

    mean: float
    deviation: float
    least: float
    most: float
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
class Guess:
    """A predicted token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The predictions for the `[MASK]` at a position of a row.

    `guesses` has for each trace its most probable tokens, in descending order; empty if the trace does not expose scores.
    """

    row: int
    position: int
    guesses: tuple[tuple[Guess, ...], ...]


@dataclass(frozen=True)
class TracedBatch:
    """A batch with its tokens row by row, its steps in the order of computation, and the predictions for each `[MASK]`."""

    name: str
    batch: Batch
    tokens: tuple[tuple[Token, ...], ...]
    steps: tuple[TracedStep, ...]
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class TraceView:
    """The data shown of one trace, or of two side by side.

    Attributes:
        names, settings: name of the implementation of each trace, and its device and format.
        golden, architecture: the network.
        table: all activations that any of the batches defines, by name.
        shown: names of the activations that each trace exposes.
        tokenized: whether the texts of tokens are known; otherwise ids are shown.
    """

    names: tuple[str, ...]
    settings: tuple[str, ...]
    golden: str
    architecture: Architecture
    table: Mapping[str, Activation]
    shown: tuple[frozenset[str], ...]
    batches: tuple[TracedBatch, ...]
    tokenized: bool


def trace_view(*traces: Trace) -> TraceView:
    """Return the view of one trace, or of two side by side.

    Raises:
        UsageError: two traces did not run on the same inputs.
    """
    first = traces[0]
    for other in traces[1:]:
        require_same_inputs(first, other)
    batches: list[TracedBatch] = []
    table: dict[str, Activation] = {}
    for name, batch in first.batches.items():
        network = Network(first.architecture, {}, batch)
        table |= network.table
        batches.append(_batch(name, network, traces))
    return TraceView(
        tuple(t.name for t in traces),
        tuple(f"{t.device}, {t.dtype}" for t in traces),
        Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden,
        first.architecture,
        table,
        tuple(frozenset(name for found in t.activations.values() for name in found) for t in traces),
        tuple(batches),
        words(_folder(traces), next(iter(first.batches.values()))) is not None,
    )


def _batch(name: str, network: Network, traces: tuple[Trace, ...]) -> TracedBatch:
    batch, folder = network.batch, _folder(traces)
    read = words(folder, batch)
    found = tuple(t.activations[name] for t in traces)
    steps = tuple(_steps(network, found))
    return TracedBatch(name, batch, _tokens(batch, read), steps, _predictions(read, found, folder))


def _folder(traces: tuple[Trace, ...]) -> Path | None:
    return next((t.folder for t in traces if t.folder), None)


def _tokens(batch: Batch, read: list[list[str]] | None) -> tuple[tuple[Token, ...], ...]:
    texts = read or [[str(i) for i in row] for row in batch.input_ids]
    return tuple(
        tuple(
            Token(text, not attended, "marked" if read is not None and text == MASK else "underlined" if kind else "")
            for text, kind, attended in zip(*row, strict=True)
        )
        for row in zip(texts, batch.types, batch.mask, strict=True)
    )


def _steps(network: Network, found: tuple[Mapping[str, Array], ...]) -> Iterator[TracedStep]:
    for name, row in network.table.items():
        values = [side.get(name) for side in found]
        shape = next((v.shape for v in values if v is not None), None)
        if shape is None:
            continue
        judged = judged_elements(row, network.batch, shape)
        judged = judged if judged.any() else np.ones(shape, np.bool_)
        kept = [None if v is None else v[judged] for v in values]
        yield TracedStep(row, shape, tuple(None if x is None else _statistics(x) for x in kept), _largest(kept))


def _statistics(x: Array) -> Statistics:
    return Statistics(float(x.mean()), float(x.std()), float(x.min()), float(x.max()), float(np.sqrt(np.mean(x**2))))


def _largest(sides: list[Array | None]) -> float | None:
    if len(sides) != 2:
        return None
    a, b = sides
    return None if a is None or b is None else float(np.abs(a - b).max())


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


def _predictions(
    read: list[list[str]] | None, found: tuple[Mapping[str, Array], ...], folder: Path | None
) -> tuple[Prediction, ...]:
    """Return the predictions for every `[MASK]` of a batch; empty if no trace exposes the scores of a masked-LM head.

    Args:
        read: texts of the batch's tokens, row by row; None without a tokenizer.
        found: the activations of each trace on this batch.
        folder: folder of the tokenizer, if there is one.
    """
    scores = [next((side[name] for name in SCORED if name in side), None) for side in found]
    places = [(row, at) for row, tokens in enumerate(read or ()) for at, token in enumerate(tokens) if token == MASK]
    if not places or all(side is None for side in scores):
        return ()
    sides = [[()] * len(places) if side is None else _likeliest(side[tuple(zip(*places, strict=True))], folder) for side in scores]
    return tuple(Prediction(*place, guesses) for place, guesses in zip(places, zip(*sides, strict=True), strict=True))


def _likeliest(scores: Array, folder: Path | None) -> list[tuple[Guess, ...]]:
    """Return the most probable tokens of each row of scores (predictions, vocabulary); ties are ordered by id.

    The probabilities are the softmax in float64, exp(s − max s) / Σ exp(s − max s).
    """
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :MOST]
    tokens = words(folder, Batch.of({"input_ids": best})) or best.astype(str)
    likely = np.take_along_axis(probabilities, best, axis=1)
    return [tuple(Guess(str(t), float(p)) for t, p in zip(*row, strict=True)) for row in zip(tokens, likely, strict=True)]
