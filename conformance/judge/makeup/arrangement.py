"""Right numbers at wrong places: along one axis, or with axes exchanged.

Along an axis, each slice i of what was made is matched with the slice p(i) of the right value that it is nearest to, in sigma; the
map p is then told by rule where one fits (reversed, shifted, exchanged, interleaved), and tried on every element.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.judge.makeup.case import Case, Finding, Noise
from conformance.judge.makeup.order import Places, is_order, rules, told
from conformance.judge.words import plural
from conformance.numerics.formats import Array
from conformance.oracle.products import merge_heads, split_heads

LONGEST = 4096  # an axis of which every pair of slices is compared: n² float64 distances are 128 MB then
COLUMNS = 2**16  # elements of a slice that are compared, over the axis' length; at least LEAST_COLUMNS
LEAST_COLUMNS = 48  # far more than needed to tell n slices apart: a match by chance in each is as rare as noise is small


@dataclass(frozen=True)
class _Axis:
    """One way of cutting arrays into slices: `cut` brings the axis to the front, `paste` back."""

    name: str
    cut: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]]
    paste: Callable[[Array], Array]


def permutations(case: Case) -> Iterator[Finding]:
    """Along every axis, and by head where features are heads side by side; linear steps also before their bias is added."""
    bias = case.step.site.parameters.get("bias", np.zeros(()))
    for axis in _axes(case):
        offsets = [np.zeros(()), bias] if axis.name in ("feature", "head") and np.any(bias) and bias.ndim else [np.zeros(())]
        for offset in offsets:
            yield from _along(case, axis, offset)


def rearrangements(case: Case) -> Iterator[Finding]:
    """Axes exchanged: transposed where they are of equal length, or read in another order where they are not."""
    for words, change in _changes(case):
        model = case.rows(change(case.right))
        noise = Noise(case.rows(change(case.sigma)), case.rows(change(case.bound)))
        kind = "transpose" if words.startswith("transposed") else "rearranged"
        yield case.tried(kind, f"made is the right value {words}", model, noise)


def _changes(case: Case) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    axes, shape, heads = case.step.site.activation.axes, case.right.shape, case.step.site.architecture.num_attention_heads
    for i in range(len(axes)):
        for j in range(i + 1, len(axes)):
            how = f"{'transposed' if shape[i] == shape[j] else 'read as if laid out'} with {axes[i]} and {axes[j]} exchanged"
            if shape[i] > 1 and shape[j] > 1:
                yield how, lambda x, i=i, j=j: np.ascontiguousarray(x.swapaxes(i, j)).reshape(shape)  # type: ignore[misc]
    if axes == ("batch", "position", "feature") and shape[-1] % heads == 0 and heads > 1 and shape[1] > 1:
        batch, length, width = shape
        size = width // heads
        yield "with heads merged before they were moved behind positions", lambda x: split_heads(x, heads).reshape(shape)
        yield "split by reshape, heads not moved before positions", lambda x: merge_heads(x.reshape(batch, heads, length, size))


def _axes(case: Case) -> Iterator[_Axis]:
    row, shape = case.step.site.activation, case.right.shape
    heads = case.step.site.architecture.num_attention_heads
    if row.axes[-1:] == ("feature",) and heads > 1 and shape[-1] % heads == 0 and ".attention.self." in row.name:
        split = (-1, heads, shape[-1] // heads)
        yield _Axis(
            "head",
            lambda x: x.reshape(split).swapaxes(0, 1),
            lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(shape),
        )
    for number, axis in enumerate(row.axes):
        if 1 < shape[number] <= LONGEST:
            yield _Axis(
                "batch row" if axis == "batch" else axis,
                lambda x, n=number: np.moveaxis(x, n, 0),  # type: ignore[misc]
                lambda x, n=number: np.moveaxis(x, 0, n),  # type: ignore[misc]
            )


def _along(case: Case, axis: _Axis, offset: Array) -> Iterator[Finding]:
    made, right = (axis.cut(np.broadcast_to(x - offset, case.made.shape)) for x in (case.made, case.right))
    judged, sigma, bound = (axis.cut(x) for x in (case.judged, case.sigma, case.bound))
    counted = judged.reshape(len(judged), -1).any(1)
    places, own = _nearest(made, right, sigma, judged), np.arange(len(made))
    wrong = axis.cut(case.scaled).reshape(len(made), -1).max(1) > case.limits[1]
    places = np.where(counted & wrong, places, own)
    if np.array_equal(places, own):
        return
    moved = np.flatnonzero(places != own)
    for rule, guess in rules(axis.name, places, moved, case.step.site.architecture):
        found = np.where(counted, guess, own)
        model = case.rows(axis.paste(right[found]) + offset)
        noise = Noise(case.rows(axis.paste(sigma[found])), case.rows(axis.paste(bound[found])))
        before = " before the bias is added" if np.any(offset) else ""
        kind, freedom = ("permutation" if is_order(found) else "gather"), 1 if rule else len(moved)
        sentence = f"{plural(axis.name)} are {rule or told(places, moved)}{before}"
        finding = case.tried(kind, sentence, model, noise, freedom)
        yield finding
        if finding.explained:
            return


def _nearest(made: Array, right: Array, sigma: Array, judged: npt.NDArray[np.bool_]) -> Places:
    """Of each slice of `made` the nearest of `right`: Σ (made − right)²/σ² over what is judged, by three matrix products."""
    length = len(made)
    flat = [x.reshape(length, -1) for x in (made, right, sigma, judged)]
    common = np.flatnonzero(flat[3].any(0))
    most = max(COLUMNS // length, LEAST_COLUMNS)
    columns = common[np.linspace(0, len(common) - 1, min(most, len(common))).astype(int)]
    a, b, s, j = (np.asarray(x[:, columns], np.float64) for x in flat)
    unit = np.median(s, 0)
    a, b = np.where(j > 0.0, a / unit, 0.0), np.nan_to_num(b / unit)
    distances = (a**2).sum(1)[:, None] - 2.0 * a @ b.T + j @ (b**2).T
    return np.asarray(distances.argmin(1), np.int64)
