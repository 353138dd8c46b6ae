"""How parameters differ from the right ones: which rows and columns, and the assignment that makes them there.

An estimate W′ with the standard deviations D of its elements is compared with the right W, (O, I) or (O,). W′ is that of an
assignment, such as `weight[0:8] *= 0.5`, if no element of W′ differs from the assigned weight by more than t_N D, the bound of N
normal errors. The assignments are 0, −W, c W, c and W + c, each for the whole of W, for the rows and for the columns that differ,
and for their block, and rows or columns of W in another order. The number c is fitted to the elements there by least squares, so at
least two have to differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from conformance.faults.fitted.fitted_fault import nearest_slices
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask, as_array

Words = tuple[str, float, float]  # A text that ends before its last number, that number, and its standard deviation or 0.

MOST_INDICES = 6  # maximum number of indices that are listed
MOST_RUNS = 3  # maximum number of runs that are listed
MOST_FEATURES = 4096  # A limit of work: with more rows or columns that differ, no other order is looked for.
DIGITS = 7  # significant digits of a float32


@dataclass(frozen=True, eq=False)
class Estimated:
    """Estimated parameters.

    Attributes:
        right: the checkpoint's, (O, I), or (O,).
        value: the estimated ones, of the same shape.
        deviation: standard deviation of each estimate.
        most: the largest error in deviations, t_N.
    """

    right: Array
    value: Array
    deviation: Array
    most: float

    @property
    def differs(self) -> Mask:
        """Which elements differ by more than their errors."""
        return as_array(~self.equals(self.right))

    @property
    def where_it_differs(self) -> "Estimated":
        """The estimates, with the right value where they do not differ from it by more than their errors."""
        return replace(self, value=np.where(self.differs, self.value, self.right))

    def equals(self, other: Array) -> Mask:
        """Return which elements are those of `other` within their errors."""
        return as_array(np.abs(self.value - other) <= self.most * self.deviation)


@dataclass(frozen=True, eq=False)
class Assignment:
    """An assignment to some elements of parameters.

    Attributes:
        code: its code without its number, such as `[0:8] *=`, or which rows or columns are those of others.
        value: that number.
        is_estimated: whether the number is estimated.
        free: the number of fitted numbers.
        applied: function from the number to the parameters that the assignment makes of the right ones.
    """

    code: str
    value: float
    is_estimated: bool
    free: int
    applied: Callable[[float], Array]


def assignment(estimated: Estimated, *, of_rows: bool = False) -> Assignment | None:
    """Return the first assignment that makes the estimated parameters of the right ones; None if there is none.

    With `of_rows`, it is one to all rows or to those that differ, and not another order of them.
    """
    differs = estimated.differs
    for chosen, index in islice(_parts(differs), 2 if of_rows else None):
        for operator, value, is_estimated in _operations(estimated, chosen):
            applied = _assigning(estimated.right, chosen, operator)
            least = 2 if is_estimated else 1  # One element alone determines a fitted number.
            if differs.sum() >= least and estimated.equals(applied(value)).all():
                return Assignment(f"{index} {operator}", value, is_estimated, 1, applied)
    return None if of_rows else next(_rearranged(estimated), None)


def _assigning(right: Array, chosen: Mask, operator: str) -> Callable[[float], Array]:
    """Return the function from a number to the parameters with that number assigned to the chosen elements."""

    def applied(value: float) -> Array:
        return np.where(chosen, {"*=": right * value, "=": np.full_like(right, value), "+=": right + value}[operator], right)

    return applied


def _rearranged(estimated: Estimated) -> Iterator[Assignment]:
    """Yield which rows, or which columns, are those of others, if each of them is."""
    for axis in range(estimated.right.ndim):
        differs = as_array(np.moveaxis(estimated.differs, axis, 0).reshape(estimated.right.shape[axis], -1).any(1))
        right, actual = (np.moveaxis(a, axis, 0).reshape(len(differs), -1) for a in (estimated.right, estimated.value))
        if not 0 < differs.sum() <= MOST_FEATURES:
            return
        order = np.arange(len(right))
        order[differs] = nearest_slices(right, actual[differs])
        rearranged = np.take(estimated.right, order, axis)
        if estimated.equals(rearranged).all():
            what = "elements" if right.shape[1] == 1 else ("rows", "columns")[axis]
            text, value = read_instead(order, np.arange(len(right)), np.ones(len(right), bool))
            yield Assignment(f" with other {what}: {text}", value, False, int(differs.sum()), _always(rearranged))


def _always(parameters: Array) -> Callable[[float], Array]:
    """Return the function of an assignment without a number."""
    return lambda _: parameters


def _operations(estimated: Estimated, chosen: Mask) -> Iterator[tuple[str, float, bool]]:
    """Yield operator, number and whether it is estimated: 0, −1 times, a fitted factor, a fitted constant, a fitted addend."""
    yield "=", 0.0, False
    yield "*=", -1.0, False
    deviation = np.where(estimated.deviation > 0.0, estimated.deviation, np.inf)  # Exact elements are not fitted.
    weight = np.where(chosen, deviation**-2.0, 0.0)
    constant = np.ones_like(weight)
    for operator, slope, target in (
        ("*=", estimated.right, estimated.value),
        ("=", constant, estimated.value),
        ("+=", constant, estimated.value - estimated.right),
    ):
        energy = float((weight * slope**2).sum())
        if energy > 0.0:
            yield operator, float((weight * slope * target).sum()) / energy, True


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
    yield rows[:, None] & columns, block_of(rows, columns)


def block_of(rows: Mask, columns: Mask) -> str:
    """Return the index of a block of a matrix."""
    both = f"{index_of(rows)}, {index_of(columns)}"
    return f"[np.ix_({both})]" if both.count("[") == 2 else f"[{both}]"  # two lists would select pairs


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


def elements_in_words(tensor: str, estimated: Estimated) -> Words:
    """Return which elements of a vector differ, and the expected and the estimated value of the first of them."""
    wrong = np.flatnonzero(estimated.differs)
    expected, value, deviation = (float(x[wrong[0]]) for x in (estimated.right, estimated.value, estimated.deviation))
    many = counted(wrong, estimated.right.size, "element")
    return f"{tensor}, {many}: expected {expected:.{DIGITS}g}, estimated", value, deviation


def counted(wrong: Ids, size: int, what: str, those: str = "", least: str = "") -> str:
    """Return how many rows or elements of `size` are wrong, and the first of them.

    Args:
        wrong: the wrong ones, ascending, at least one.
        size: the number of those that are judged.
        what: `row` or `element`.
        those: which ones are judged, in words.
        least: `at least ` if others may be wrong as well.

    Example:
        >>> counted(np.array([5]), 8, "row"), counted(np.array([2, 3]), 8, "row", " that are read")
        ('row 5', '2 of the 8 rows that are read, the first is row 2')
    """
    if len(wrong) == 1:
        return f"{what} {wrong[0]}"
    many = f"all {size}" if len(wrong) == size else f"{least}{len(wrong)} of the {size}"
    return f"{many} {what}s{those}, the first is {what} {wrong[0]}"


def ends_before_number(text: str) -> tuple[str, float]:
    """Return a text without the number at its end, and this number."""
    before, _, last = text.rpartition(" ")
    return before, float(last or 0.0)


def read_instead(read: Ids, expected: Ids, judged: Mask) -> tuple[str, float]:
    """Return which numbers are expected and which are read, as a text that ends before its last number, and that number.

    Runs of numbers that are all moved by the same amount, or reversed, or replaced by one number, are joined. If a number is
    replaced at some places only, or by several others, the first of these places is given.

    Args:
        read: the numbers that the candidate reads.
        expected: the numbers that it should read, of the same shape.
        judged: which of them are judged.

    Example:
        >>> read_instead(np.array([3, 4, 5, 6]), np.array([0, 1, 2, 3]), np.ones(4, bool))
        ('expected 0 to 3, estimated 3 to', 6.0)
        >>> read_instead(np.array([0, 5, 2, 1]), np.array([0, 1, 2, 5]), np.ones(4, bool))
        ('expected 1, estimated 5; expected 5, estimated', 1.0)
    """
    wrong = judged & (read != expected)
    pairs = sorted(set(zip(expected[wrong].tolist(), read[wrong].tolist(), strict=True)))
    if not pairs:
        return "", 0.0
    is_mapping = len({right for right, _ in pairs}) == len(pairs) and not np.isin(expected[judged & ~wrong], expected[wrong]).any()
    if not is_mapping:
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"row {at[0]}, position {at[1]}" if len(at) == 2 else f"token {at[0]}"
        return (
            f"{int(wrong.sum())} of {int(judged.sum())} are others, the first at {place}: expected {expected[at]}, estimated",
            float(read[at]),
        )
    listed = [_run(run) for run in _runs(pairs)]
    many = f"{len(pairs)} are others, such as " if len(listed) > MOST_RUNS else ""
    return ends_before_number(many + "; ".join(listed[:MOST_RUNS]))


def _runs(pairs: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Yield the runs of pairs (expected, read) in which the first number grows by 1 and the second changes by 1, 0 or −1."""
    start, step = 0, None
    for i, ((right, read), (next_right, next_read)) in enumerate(pairwise(pairs)):
        moved = next_read - read
        if next_right == right + 1 and abs(moved) <= 1 and step in (None, moved):
            step = moved
        else:
            yield pairs[start : i + 1]
            start, step = i + 1, None
    yield pairs[start:]


def _run(run: Sequence[tuple[int, int]]) -> str:
    """Return a run in words."""
    expected, read = (str(a) if a == b else f"{a} to {b}" for a, b in zip(run[0], run[-1], strict=True))
    return f"expected {expected}, estimated {read}"
