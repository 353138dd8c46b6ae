"""Correct values at wrong places: reordered along one axis, or with axes exchanged.

Along an axis, each slice i of the actual value is matched with the nearest slice p(i) of the expected value, in sigma.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.faults.fitted.differences import read_instead
from conformance.judge.error_distribution import heads_in
from conformance.judge.number_words import plural
from conformance.judge.residual_models.residual_problem import ElementNoise, Places, ResidualFinding, ResidualProblem
from conformance.numerics.formats import Array, Mask, as_array

LONGEST = 4096  # longest axis of which all pairs of slices are compared: n² float64 distances take 128 MB
COLUMNS = 2**16  # elements compared over all slices; at least LEAST_COLUMNS per slice
LEAST_COLUMNS = 48  # far more than needed to distinguish n slices: a chance match of every element is as rare as noise is small


@dataclass(frozen=True, eq=False)
class _Axis:
    """An axis of slices: axis `along` of an array viewed with shape `view`, which differs from its own shape only for heads."""

    name: str
    along: int
    view: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of slices."""
        return self.view[self.along]


def permutations(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for slices permuted along each axis, and by head; for linear steps also before the bias is added."""
    bias = case.step.site.parameters.get("bias", np.zeros(()))
    for axis in _axes(case):
        yield from _along(case, axis, np.zeros(()))
        if axis.name in ("head", "feature") and np.any(bias):
            yield from _along(case, axis, bias)


def rearrangements(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for exchanged axes: transposed if their lengths are equal, else read in another memory order."""
    for words, view, order in _exchanges(case):
        source = _exchanged(case, view, order)
        noise = ElementNoise(case.at(case.sigma, source), case.at(case.bound, source))
        kind = "transpose" if words.startswith("transposed") else "rearranged"
        yield case.finding_of(kind, f"the result is the correct value {words}", case.at(case.expected, source), noise)


def _exchanges(case: ResidualProblem) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield a description, and x.reshape(view).transpose(order), to be read with the result's shape, as (view, order)."""
    axes, shape, size = case.step.site.activation.axes, case.expected.shape, case.step.site.architecture.head_size
    for i in range(len(axes)):
        for j in range(i + 1, len(axes)):
            if shape[i] > 1 and shape[j] > 1:
                order = [j if k == i else i if k == j else k for k in range(len(axes))]
                how = "transposed" if shape[i] == shape[j] else "read as if laid out"
                yield f"{how} with {axes[i]} and {axes[j]} exchanged", shape, tuple(order)
    if axes == ("batch", "position", "feature") and shape[-1] % size == 0 and shape[-1] > size and shape[1] > 1:
        batch, length, width = shape
        heads = width // size
        yield "with heads merged before they were moved behind positions", (batch, length, heads, size), (0, 2, 1, 3)
        yield "split by reshape, heads not moved before positions", (batch, heads, length, size), (0, 2, 1, 3)


def _exchanged(case: ResidualProblem, view: tuple[int, ...], order: tuple[int, ...]) -> tuple[Places, ...]:
    """Return the coordinates in x of the case's elements of x.reshape(view).transpose(order).reshape(x.shape)."""
    shape = case.actual.shape
    flat = np.ravel_multi_index(np.broadcast_arrays(*case.coordinates), shape)
    there = np.unravel_index(flat, tuple(view[k] for k in order))
    back = [there[order.index(k)] for k in range(len(view))]
    return tuple(np.unravel_index(np.ravel_multi_index(back, view), shape))


def _axes(case: ResidualProblem) -> Iterator[_Axis]:
    row, shape, size = case.step.site.activation, case.expected.shape, case.step.site.architecture.head_size
    if row.axes and (heads := heads_in(row, shape[-1], size)) > 1:
        yield _Axis("head", len(shape) - 1, (*shape[:-1], heads, size))
    for along, axis in enumerate(row.axes):
        if 1 < shape[along] <= LONGEST and len(shape) > 1:  # single numbers cannot be recognised elsewhere
            yield _Axis("batch row" if axis == "batch" else axis, along, shape)


def _along(case: ResidualProblem, axis: _Axis, offset: Array) -> Iterator[ResidualFinding]:
    own, wrong = np.arange(axis.length), _slices(axis, case.judged & (case.scaled > case.limits.max))
    places = np.where(wrong, _nearest(case, axis, offset), own)
    moved = int((places != own).sum())
    if not moved:
        return
    is_order = len(np.unique(places)) == len(places)
    text, last = read_instead(places, own, own >= 0)
    order = "in another order" if is_order else "taken from other places"
    before = " before the bias is added" if np.any(offset) else ""
    sentence = f"{plural(axis.name)} are {order}{before}: {text} {last:g}"
    yield case.finding_of("permutation" if is_order else "gather", sentence, *_taken(case, axis, places, offset), moved)


def _slices(axis: _Axis, mask: Mask) -> Mask:
    """Return a mask of the slices that contain any element of `mask`."""
    return as_array(np.moveaxis(mask.reshape(axis.view), axis.along, 0).any(tuple(range(1, len(axis.view)))))


def _taken(case: ResidualProblem, axis: _Axis, places: Places, offset: Array) -> tuple[Array, ElementNoise]:
    """Return the expected value with slice i taken from places[i] and the offset added afterwards, and its noise."""
    here = case.coordinates[axis.along]
    size = axis.view[-1] if axis.name == "head" and len(axis.view) > case.actual.ndim else 1
    source = (*case.coordinates[: axis.along], places[here // size] * size + here % size, *case.coordinates[axis.along + 1 :])
    model = case.at(case.expected - offset if np.any(offset) else case.expected, source) + (
        case.rows(offset) if np.any(offset) else 0.0
    )
    noise = ElementNoise(case.at(case.sigma, source), case.at(case.bound, source))
    if np.any(offset):  # an offset is added to other values than in the correct result
        noise = ElementNoise(np.hypot(noise.sigma, case.noise_of(model).sigma), noise.bound)
    return model, noise


def _nearest(case: ResidualProblem, axis: _Axis, offset: Array) -> Places:
    """Return for each slice of the actual value the nearest slice of the expected one, after subtracting the offset from both.

    The distance is Σ (actual − expected)²/σ² over a sample of the judged elements, computed by three matrix products.
    """
    judged = np.moveaxis(case.judged.reshape(axis.view), axis.along, 0)
    common = np.flatnonzero(judged.any(0))
    most = min(max(COLUMNS // axis.length, LEAST_COLUMNS), len(common))
    chosen = np.unravel_index(common[np.linspace(0, len(common) - 1, most).astype(int)], judged.shape[1:])

    def cut(array: npt.NDArray[Any]) -> Array:
        wide = np.broadcast_to(array, case.actual.shape).reshape(axis.view)
        return as_array(np.moveaxis(wide, axis.along, 0)[(slice(None), *chosen)], np.float64)

    j, shift, unit = cut(case.judged), cut(offset), np.median(cut(case.sigma), 0)
    a, b = np.where(j > 0.0, (cut(case.actual) - shift) / unit, 0.0), np.nan_to_num((cut(case.expected) - shift) / unit)
    distances = (a**2).sum(1)[:, None] - 2.0 * a @ b.T + j @ (b**2).T
    return as_array(distances.argmin(1), np.int64)
