"""What an input becomes, step by step, in one trace or in two of the same inputs. Pure functions of traces."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.checks.trace import Trace, require_same_inputs
from conformance.goldens.custom_golden import PREFIX
from conformance.judge.selection import judged_elements
from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.model.tokenizer import words
from conformance.numerics.formats import Array
from conformance.oracle import Network
from conformance.report.document import Token
from conformance.report.trace.predictions import MASK, Prediction, predictions

Reader = Callable[[Path | None, Batch], list[list[str]] | None]  # the token of each id, or None without a tokenizer

STATISTICS_NOTE = (
    "Statistics are over real tokens, not padding (in attention: real keys of real queries); where an activation has none, over "
    "all of it. rms is the root of the mean square."
)


@dataclass(frozen=True)
class Statistics:
    """Of the elements x that are judged, of all where none is.

    Attributes:
        mean, deviation: of x; the deviation is that of the population, √mean((x − mean)²).
        least, most: the extremes.
        rms: the norm, √mean(x²).
    """

    mean: float
    deviation: float
    least: float
    most: float
    rms: float


@dataclass(frozen=True)
class TracedStep:
    """One activation.

    Attributes:
        row: its row in the table of activations: name, equation, axes, parents.
        shape: its lengths, one an axis.
        sides: statistics, one a trace; None where the trace does not have it.
        largest: the largest difference between two traces at what is judged; None where there are not two.
    """

    row: Activation
    shape: tuple[int, ...]
    sides: tuple[Statistics | None, ...]
    largest: float | None


@dataclass(frozen=True)
class TracedBatch:
    """One batch: its tokens, a row each, the steps in the order of computation, and the predictions for each `[MASK]`."""

    name: str
    batch: Batch
    tokens: tuple[tuple[Token, ...], ...]
    steps: tuple[TracedStep, ...]
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class TraceView:
    """What is shown of one trace, or of two.

    Attributes:
        names: of the implementations, one a trace.
        settings: device and format, one a trace.
        golden: what the network is called.
        table: the activations that one of the batches defines, by name.
        shown: the names that each trace has.
        tokenized: whether tokens are reported, or ids.
    """

    names: tuple[str, ...]
    settings: tuple[str, ...]
    golden: str
    architecture: Architecture
    table: Mapping[str, Activation]
    shown: tuple[frozenset[str], ...]
    batches: tuple[TracedBatch, ...]
    tokenized: bool


def trace_view(*traces: Trace, reader: Reader = words) -> TraceView:
    """The view of one trace, or of two side by side; `reader` returns the tokens of ids.

    Raises:
        UsageError: two did not run on the same inputs.
    """
    first = traces[0]
    for other in traces[1:]:
        require_same_inputs(first, other)
    batches: list[TracedBatch] = []
    table: dict[str, Activation] = {}
    for name, batch in first.batches.items():
        network = Network(first.architecture, {}, batch)
        table |= network.table
        batches.append(_batch(name, network, traces, reader))
    return TraceView(
        tuple(t.name for t in traces),
        tuple(f"{t.device}, {t.dtype}" for t in traces),
        Path(first.golden).name if first.golden.startswith(PREFIX) else first.golden,
        first.architecture,
        table,
        tuple(frozenset(name for found in t.activations.values() for name in found) for t in traces),
        tuple(batches),
        reader(_folder(traces), next(iter(first.batches.values()))) is not None,
    )


def _batch(name: str, network: Network, traces: tuple[Trace, ...], reader: Reader) -> TracedBatch:
    batch, folder = network.batch, _folder(traces)
    read = reader(folder, batch)
    found = tuple(t.activations[name] for t in traces)
    steps = tuple(_steps(network, found))
    return TracedBatch(name, batch, _tokens(batch, read), steps, predictions(read, found, lambda b: reader(folder, b)))


def _folder(traces: tuple[Trace, ...]) -> Path | None:
    return next((t.folder for t in traces if t.folder), None)


def _tokens(batch: Batch, read: list[list[str]] | None) -> tuple[tuple[Token, ...], ...]:
    texts = read or [[str(i) for i in row] for row in batch.input_ids]
    return tuple(
        tuple(
            Token(text, not attended, marked=read is not None and text == MASK, underlined=bool(kind))
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
    """A number in three digits and at most eight characters; `-` for none."""
    if value is None:
        return "-"
    size = abs(value)
    if size == 0.0 or 1e-3 <= size < 1e3 or not np.isfinite(size):
        return f"{value:.3g}"
    if 1e3 <= size < 1e5:
        return f"{value:.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
