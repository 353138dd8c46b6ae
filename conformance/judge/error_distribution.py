"""Distribution of a failing residual: its RMS along each axis.

The distribution is for display, to three digits; nothing is judged by it.

Heads are the slices of features that stand side by side along the last axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from conformance.model.activation import Activation
from conformance.numerics.formats import Array, Mask


def heads_in(row: Activation, width: int, head_size: int) -> int:
    """Return the number of heads whose features stand side by side along the last axis; 0 if they do not.

    Queries, keys, values, contexts, their gradients and those of the biases are such activations. The last axis of a weight's
    gradient and of `linear_backward` is the input of a projection, and a distance embedding is shared by the heads.

    Args:
        row: the activation's row of the table.
        width: length of the last axis, which is shorter in a layer with pruned heads.
        head_size: number of features of a head.

    Example:
        >>> from conformance import load_golden
        >>> from conformance.model.activations import table
        >>> a = load_golden("pruned-heads").checkpoint.architecture
        >>> queries = [table(a)[f"encoder.layer.{i}.attention.self.query"] for i in range(a.num_hidden_layers)]
        >>> [heads_in(row, row.width, a.head_size) for row in queries], a.num_attention_heads
        ([2, 3], 4)
    """
    projected = row.axes[-1:] == ("feature",) and not {"query", "row"} & set(row.axes) and row.kind != "linear_backward"
    return width // head_size if projected and "attention.self." in row.name and width % head_size == 0 else 0


SLICES = 64  # maximum number of slices of a strip, as many as a reader can distinguish

_LARGEST = 1e150  # its square is finite, and so is a sum of many such squares

Errors = tuple[float | None, ...]


@dataclass(frozen=True)
class Strip:
    """The RMS of the residual along one axis.

    Attributes:
        axis: `batch row`, `position`, `query`, `key`, `head` or `feature`.
        size: length of the axis.
        values: RMS over the judged elements of each slice, None for a slice without any; if the axis is longer than `values`, each
            value covers `-(-size // len(values))` adjacent slices.
    """

    axis: str
    size: int
    values: Errors


@dataclass(frozen=True)
class ErrorDistribution:
    """The distribution of a residual over places.

    Attributes:
        unit: `sigma`, or `ulp` at exact activations.
        strips: one strip for each axis.
        tokens: the RMS at each row and position, None where nothing is judged; empty if the activation has no positions.
    """

    unit: Literal["sigma", "ulp"]
    strips: tuple[Strip, ...] = ()
    tokens: tuple[Errors, ...] = ()


def distribution_of(
    row: Activation, scaled: Array, judged: Mask, unit: Literal["sigma", "ulp"], head_size: int
) -> ErrorDistribution:
    """Return the distribution of a signed residual in units of sigma or ulp.

    Args:
        row: the activation's row of the table.
        scaled: the residual in its unit; non-finite elements count as the largest value.
        judged: mask of the judged elements.
        unit: unit of `scaled`.
        head_size: number of features of an attention head.
    """
    scaled = np.nan_to_num(scaled, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    if not row.axes:
        return ErrorDistribution(unit)
    squares, places = np.minimum(np.abs(np.where(judged, scaled, 0.0)), _LARGEST) ** 2, judged.astype(np.float64)
    strips = tuple(_strips(row, squares, places, head_size))
    return ErrorDistribution(unit, strips, _tokens(row, squares, places))


def _strips(row: Activation, squares: Array, places: Array, head_size: int) -> Iterator[Strip]:
    heads = heads_in(row, squares.shape[-1], head_size)
    for number, axis in enumerate(row.axes):
        others = tuple(i for i in range(squares.ndim) if i != number)
        within = head_size if heads and axis == "feature" else squares.shape[number]
        yield _strip("batch row" if axis == "batch" else axis, squares.sum(others), places.sum(others), within)
    if heads:
        shape = (-1, heads, head_size)
        yield _strip("head", squares.reshape(shape).sum((0, 2)), places.reshape(shape).sum((0, 2)), heads)


def _strip(axis: str, squares: Array, places: Array, within: int) -> Strip:
    """Return a strip; if slices are too many, adjacent ones are joined in groups that do not span two heads (`within`)."""
    least = -(-squares.size // SLICES)
    per = next((n for n in range(least, 2 * least) if within % n == 0), least)
    starts = np.arange(0, squares.size, per)
    return Strip(axis, squares.size, _rms(np.add.reduceat(squares, starts), np.add.reduceat(places, starts)))


def _tokens(row: Activation, squares: Array, places: Array) -> tuple[Errors, ...]:
    axis = next((a for a in ("position", "query") if a in row.axes), None)
    if axis is None:
        return ()
    others = tuple(i for i, a in enumerate(row.axes) if a not in ("batch", axis))
    return tuple(_rms(s, p) for s, p in zip(squares.sum(others), places.sum(others), strict=True))


def _rms(squares: Array, places: Array) -> Errors:
    with np.errstate(invalid="ignore"):
        return tuple(None if np.isnan(x) else float(f"{x:.3g}") for x in np.sqrt(squares / places))
