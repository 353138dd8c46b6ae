"""How a residual is spread: over sizes, as a histogram to hold against the predicted noise, and over the places of each axis.

Nothing is judged by it; it is what is shown of a judgement.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from conformance.judge.selection import Mask
from conformance.model.activation import Activation
from conformance.numerics.formats import Array, Captured

REACH, STEP = 6.0, 0.5  # the histogram's, in sigma; what is beyond is counted at its ends
SLICES = 64  # of a strip at most: what a reader can distinguish

_LARGEST = 1e150  # whose square is finite, and of any number of them the sum

ZERO = round(REACH / STEP) + 1  # the place of 0 in the histogram

Histogram = npt.NDArray[np.int64]

BY_HEAD = (".query", ".key", ".value", ".context")  # ends of names of activations whose features are heads side by side


@dataclass(frozen=True)
class Strip:
    """The residual along one axis.

    Attributes:
        axis: `batch row`, `position`, `query`, `key`, `head` or `feature`.
        size: how long the axis is.
        values: RMS over the judged elements of each slice, NaN where there are none; where the axis is longer than there are
            values, each stands for `-(-size // len(values))` slices side by side.
    """

    axis: str
    size: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class ErrorDistribution:
    """How a residual is spread.

    Attributes:
        unit: `sigma`, or `ulp` at exact activations.
        counts: of judged elements, from below −REACH over steps of STEP to above REACH; empty at exact activations.
        strips: for what fails: one an axis.
        tokens: for what fails: RMS at each row and position, NaN where nothing is judged; empty where it has no positions.
    """

    unit: Literal["sigma", "ulp"]
    counts: tuple[int, ...] = ()
    strips: tuple[Strip, ...] = ()
    tokens: tuple[tuple[float, ...], ...] = ()


def spread(
    row: Activation, scaled: Array, judged: Mask, unit: Literal["sigma", "ulp"], heads: int, *, fails: bool
) -> ErrorDistribution:
    """Of the residual in its unit, with its sign; what is not finite is taken as the largest."""
    scaled = np.nan_to_num(scaled, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST)
    rendered = tuple(int(n) for n in counts(scaled[judged])) if unit == "sigma" else ()
    if not fails or not row.axes:
        return ErrorDistribution(unit, rendered)
    squares, places = np.minimum(np.abs(np.where(judged, scaled, 0.0)), _LARGEST) ** 2, judged.astype(np.float64)
    strips = tuple(_strips(row, squares, places, heads))
    return ErrorDistribution(unit, rendered, strips, _tokens(row, squares, places))


def counts(scaled: Captured) -> Histogram:
    """How many values lie below −REACH, in each STEP from there on, and above REACH; what is no number counts as above."""
    bins = round(2.0 * REACH / STEP)
    with np.errstate(over="ignore"):
        index = scaled.astype(np.float32).ravel()
    index += np.float32(REACH + STEP)  # one step more, so that cutting off is rounding down
    index *= np.float32(1.0 / STEP)
    np.fmin(index, np.float32(bins + 1), out=index)
    np.maximum(index, np.float32(0.0), out=index)
    return np.bincount(index.astype(np.uint8), minlength=bins + 2)


def _strips(row: Activation, squares: Array, places: Array, heads: int) -> Iterator[Strip]:
    by_heads = row.name.endswith(BY_HEAD) and ".attention.self." in row.name
    for number, axis in enumerate(row.axes):
        others = tuple(i for i in range(squares.ndim) if i != number)
        within = squares.shape[number] // (heads if by_heads and axis == "feature" else 1)
        yield _strip("batch row" if axis == "batch" else axis, squares.sum(others), places.sum(others), within)
    if by_heads:
        shape = (-1, heads, squares.shape[-1] // heads)
        yield _strip("head", squares.reshape(shape).sum((0, 2)), places.reshape(shape).sum((0, 2)), heads)


def _strip(axis: str, squares: Array, places: Array, within: int) -> Strip:
    """Slices side by side are joined where there are too many: as many as divide `within`, so that none straddles two heads."""
    least = -(-squares.size // SLICES)
    per = next((n for n in range(least, 2 * least) if within % n == 0), least)
    starts = np.arange(0, squares.size, per)
    return Strip(axis, squares.size, _rms(np.add.reduceat(squares, starts), np.add.reduceat(places, starts)))


def _tokens(row: Activation, squares: Array, places: Array) -> tuple[tuple[float, ...], ...]:
    axis = next((a for a in ("position", "query") if a in row.axes), None)
    if axis is None:
        return ()
    others = tuple(i for i, a in enumerate(row.axes) if a not in ("batch", axis))
    return tuple(_rms(s, p) for s, p in zip(squares.sum(others), places.sum(others), strict=True))


def _rms(squares: Array, places: Array) -> tuple[float, ...]:
    with np.errstate(invalid="ignore"):
        return tuple(float(x) for x in np.sqrt(squares / places))
