"""The structure of estimated parameters: in which rows and columns they differ, and the assignment that makes them there.

An estimate W′ with the standard deviations D of its elements is compared with the right W, (O, I). W′ is that of an assignment,
such as `weight[0:8] *= 0.5`, if no element of W′ differs from the assigned weight by more than t_N D, the bound of N normal errors.
The assignments are 0, −W, c W, c and W + c; each is tried for the whole of W, for the rows and for the columns that differ, and for
their block. The number c is fitted to the elements there by least squares, so at least two have to differ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from conformance.faults.fitted.lookup_words import read_instead
from conformance.numerics.formats import Array, Mask, as_array

MOST_INDICES = 6  # maximum number of indices that are listed


@dataclass(frozen=True, eq=False)
class Estimated:
    """Estimated parameters.

    Attributes:
        right: the checkpoint's, (O, I), or (O,).
        found: the estimated ones, of the same shape.
        deviation: standard deviation of each estimate.
        most: the largest error in deviations, t_N.
    """

    right: Array
    found: Array
    deviation: Array
    most: float

    @property
    def differs(self) -> Mask:
        """Which elements differ by more than their errors."""
        return as_array(~self.equals(self.right))

    def equals(self, other: Array) -> Mask:
        """Return which elements are those of `other` within their errors."""
        return as_array(np.abs(self.found - other) <= self.most * self.deviation)


@dataclass(frozen=True, eq=False)
class Assignment:
    """An assignment to some elements of parameters.

    Attributes:
        code: its code without its number, such as `[0:8] *=`, or which rows or columns are those of others.
        value: that number.
        deviation: standard deviation of the number if it is estimated, otherwise 0.
        made: function from the number to the parameters that the assignment makes of the right ones.
    """

    code: str
    value: float
    deviation: float
    made: Callable[[float], Array]


def assignment(estimated: Estimated) -> Assignment | None:
    """Return the first assignment that makes the estimated parameters of the right ones; None if there is none."""
    differs = estimated.differs
    for chosen, index in _parts(differs):
        for operator, value, deviation in _operations(estimated, chosen):
            made = _assigning(estimated.right, chosen, operator)
            least = 2 if deviation > 0.0 else 1  # One element alone determines a fitted number.
            if differs.sum() >= least and estimated.equals(made(value)).all():
                return Assignment(f"{index} {operator}", value, deviation, made)
    return _rearranged(estimated)


def _assigning(right: Array, chosen: Mask, operator: str) -> Callable[[float], Array]:
    """Return the function from a number to the parameters with that number assigned to the chosen elements."""
    return lambda value: np.where(chosen, _assigned(right, operator, value), right)


def _rearranged(estimated: Estimated) -> Assignment | None:
    """Return which rows, or which columns, are those of others, if each of them is; None if not."""
    if estimated.right.ndim == 1:
        return None
    for axis, what in enumerate(("rows", "columns")):
        differs = as_array(estimated.differs.any(1 - axis))
        right, found = (np.moveaxis(a, axis, 0) for a in (estimated.right, estimated.found))
        nearest = ((right**2).sum(1) - 2.0 * found[differs] @ right.T).argmin(1)
        order = np.arange(len(right))
        order[differs] = nearest
        made = np.take(estimated.right, order, axis)
        if (order != np.arange(len(right))).any() and estimated.equals(made).all():
            text, value = read_instead(order, np.arange(len(right)), np.ones(len(right), bool))
            return Assignment(f" with other {what}: {text}", value, 0.0, _always(made))
    return None


def _always(made: Array) -> Callable[[float], Array]:
    """Return the function of an assignment without a number."""
    return lambda _: made


def _assigned(right: Array, operator: str, value: float) -> Array:
    return {"*=": right * value, "=": np.full_like(right, value), "+=": right + value}[operator]


def _operations(estimated: Estimated, chosen: Mask) -> Iterator[tuple[str, float, float]]:
    """Yield operator, number and its deviation: 0, −1 times, a fitted factor, a fitted constant, a fitted addend."""
    yield "=", 0.0, 0.0
    yield "*=", -1.0, 0.0
    known = np.where(estimated.deviation > 0.0, estimated.deviation, np.inf)  # Exact elements are not fitted.
    weight = np.where(chosen, known**-2.0, 0.0)
    one = np.ones_like(weight)
    for operator, slope, target in (
        ("*=", estimated.right, estimated.found),
        ("=", one, estimated.found),
        ("+=", one, estimated.found - estimated.right),
    ):
        energy = float((weight * slope**2).sum())
        if energy > 0.0:
            yield operator, float((weight * slope * target).sum()) / energy, energy**-0.5


def _parts(differs: Mask) -> Iterator[tuple[Mask, str]]:
    """Yield the parts of the parameters that may be assigned to, as a mask and as an index: all, rows, columns and their block."""
    if not differs.any():
        return
    rows = differs if differs.ndim == 1 else as_array(differs.any(1))
    yield np.ones_like(differs), "[:]"
    if differs.ndim == 1:
        yield rows, f"[{index_of(rows)}]"
        return
    columns = as_array(differs.any(0))
    yield np.broadcast_to(rows[:, None], differs.shape), f"[{index_of(rows)}]"
    yield np.broadcast_to(columns, differs.shape), f"[:, {index_of(columns)}]"
    both = f"{index_of(rows)}, {index_of(columns)}"
    yield rows[:, None] & columns, f"[np.ix_({both})]" if both.count("[") == 2 else f"[{both}]"  # two lists would select pairs


def index_of(chosen: Mask) -> str:
    """Return the index of the chosen rows or columns: one number, a slice, or a list, which ends with … if it is long.

    Example:
        >>> index_of(np.array([False, True, True, False])), index_of(np.array([True, False, True, True]))
        ('1:3', '[0, 2, 3]')
    """
    at = [int(i) for i in np.flatnonzero(chosen)]
    if len(at) == len(chosen):
        return ":"
    if len(at) == 1:
        return f"{at[0]}"
    steps = set(np.diff(at).tolist())
    if len(steps) == 1:
        (step,) = steps
        end = "" if at[-1] + step >= len(chosen) else str(at[-1] + 1)
        return f"{at[0]}:{end}{f':{step}' if step > 1 else ''}"
    return f"[{', '.join(map(str, at[:MOST_INDICES]))}{', …' if len(at) > MOST_INDICES else ''}]"
