"""Rows of a table that a candidate reads instead of others, and elements of rows that differ, in words with their numbers."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask

_Run = tuple[tuple[int, int], tuple[int, int]]  # first and last expected number, and those that are read instead

MOST_RUNS = 3  # maximum number of runs that are listed
DIGITS = 7  # significant digits of a float32


def read_instead(found: Ids, expected: Ids, judged: Mask) -> tuple[str, float]:
    """Return which numbers are expected and which are read, as a text that ends before its last number, and that number.

    Runs of numbers that are all moved by the same amount, or reversed, are joined. If a number is replaced at some places only, or
    by several others, the first of these places is given.

    Args:
        found: the numbers that the candidate reads.
        expected: the numbers that it should read, of the same shape.
        judged: which of them are judged.

    Example:
        >>> read_instead(np.array([3, 4, 5, 6]), np.array([0, 1, 2, 3]), np.ones(4, bool))
        ('expected 0 to 3, estimated 3 to', 6.0)
        >>> read_instead(np.array([0, 5, 2, 1]), np.array([0, 1, 2, 5]), np.ones(4, bool))
        ('expected 1, estimated 5; expected 5, estimated', 1.0)
    """
    wrong = judged & (found != expected)
    pairs = sorted(set(zip(expected[wrong].tolist(), found[wrong].tolist(), strict=True)))
    if not pairs:
        return "", 0.0
    is_mapping = len({right for right, _ in pairs}) == len(pairs) and not np.isin(expected[judged & ~wrong], expected[wrong]).any()
    if not is_mapping:
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        many = f"{int(wrong.sum())} of {int(judged.sum())} are others, the first at {_place(at)}"
        return f"{many}: expected {expected[at]}, estimated", float(found[at])
    runs = _runs(pairs)
    listed = [_run(run) for run in runs[:MOST_RUNS]]
    many = f"{len(pairs)} are others, such as " if len(runs) > MOST_RUNS else ""
    *before, last = "; ".join(listed).split(" ")
    return f"{many}{' '.join(before)}", float(last)


def _place(at: tuple[int, ...]) -> str:
    """Return an index in words: that of a row and a position, or that of a token."""
    return f"row {at[0]}, position {at[1]}" if len(at) == 2 else f"token {at[0]}"


def _runs(pairs: Sequence[tuple[int, int]]) -> list[_Run]:
    """Return the runs of pairs (expected, found) in which both numbers change by a step of ±1."""
    starts = [0]
    step = 0
    for i, ((right, found), (next_right, next_found)) in enumerate(pairwise(pairs)):
        moved = next_found - found
        is_continued = next_right == right + 1 and abs(moved) == 1 and step in (0, moved)
        if not is_continued:
            starts.append(i + 1)
        step = moved if is_continued else 0
    ends = [*(start - 1 for start in starts[1:]), len(pairs) - 1]
    return [((pairs[a][0], pairs[b][0]), (pairs[a][1], pairs[b][1])) for a, b in zip(starts, ends, strict=True)]


def _run(run: _Run) -> str:
    """Return a run in words."""
    expected, found = (str(a) if a == b else f"{a} to {b}" for a, b in run)
    return f"expected {expected}, estimated {found}"


def first_to_last(numbers: Ids, what: str, those: str = "") -> tuple[str, float]:
    """Return how many numbers there are and the first and last of them, as a text that ends before the last, and the last.

    Args:
        numbers: the numbers, ascending.
        what: what they count.
        those: the end of the text that says which ones.

    Example:
        >>> first_to_last(np.array([2, 3, 7]), "output")
        ('3 outputs, from 2 to', 7.0)
    """
    return what if len(numbers) == 1 else f"{len(numbers)} {what}s{those}, from {numbers[0]} to", float(numbers[-1])


def element_that_differs(found: Array, expected: Array) -> tuple[str, float]:
    """Return the element of a row that differs most, as a text that ends before its estimated value, and that value.

    Example:
        >>> element_that_differs(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
        ('element 1, expected 2, estimated', 2.5)
    """
    at = int(np.abs(found - expected).argmax())
    return f"element {at}, expected {expected[at]:.{DIGITS}g}, estimated", float(found[at])
