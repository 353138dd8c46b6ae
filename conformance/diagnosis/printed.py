"""Printed numbers: the value, the unit of the last digit, and which elements of a table were printed at all.

A number printed as 0.1234 is known to ± half a unit of its last digit, a uniform error of variance 10^-2d / 12, d = 4. Digits are
counted for each number: if trailing zeros were cut off (0.123 for 0.1230), the unit is too large, which loses some evidence and
raises no false alarm. A number that is stored in a narrower format than it was computed in is known to ± half a unit in the last
place of that format; if it was printed as well, the variances of the two roundings are added.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.numerics.formats import FORMATS, Array, Format

ELLIPSES = ("...", "…")
_EXPONENT = 300  # largest exponent, within float64's range
_NUMBER = re.compile(r"[-+]?(?:\d+\.?(?P<decimals>\d*)|\.(?P<only>\d+))(?:[eE](?P<exponent>[-+]?\d+))?")


class PrintedNumber(str):
    """The text of a number, as distinguished from other text."""

    __slots__ = ()


@dataclass(frozen=True)
class KnownNumbers:
    """The known numbers of a table.

    Attributes:
        values: the numbers; NaN where nothing is known.
        units: unit of each number's last digit, or last place in its stored format, or √(a² + b²) of both; 0 for exact numbers.
        stored: name of the format of stored numbers, if it is narrower than that of the computation; else empty.
    """

    values: Array
    units: Array
    stored: str = ""


def unit(text: str) -> float:
    """Return the unit of the last printed digit, 10^(exponent − decimals).

    Raises:
        ValueError: the text is not a number, or its exponent is out of range.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    decimals = len(found["decimals"] or found["only"] or "")
    exponent = int(found["exponent"] or 0) - decimals
    if not -_EXPONENT <= exponent <= _EXPONENT:
        raise ValueError(text)
    return float(10.0**exponent)


def filled(
    tree: Any,
    shape: tuple[int, ...],
    name: str,
    digits: int | None = None,
    *,
    stored: str = "",
    computed: Format = FORMATS["float32"],
) -> KnownNumbers:
    """Return the numbers of a tree of lists, numbers as text, nulls and ellipses, placed in an array of shape `shape`.

    Args:
        tree: nested lists; null stands for one unknown element or part, an ellipsis for any number of them; or an array.
        shape: shape of the whole output.
        name: name of the output, for errors.
        digits: decimals of every number, which override the printed digits.
        stored: name of the format in which the numbers were stored, whose rounding is included if it is narrower than `computed`;
            if empty, that of an array's dtype.
        computed: the format in which the numbers were computed.

    Raises:
        UsageError: a list has the wrong length, or an entry is not a number; the message states its index.
    """
    if isinstance(tree, np.ndarray):
        values, units, stored = _of_array(tree, shape, name), np.zeros(shape), stored or tree.dtype.name
    else:
        values, units = np.full(shape, math.nan), np.zeros(shape)
        for index, text in _leaves(tree, shape, name, ()):
            values[index], units[index] = _read(text, name, index)
    if digits is not None:
        units = np.full(shape, 10.0**-digits)
    narrow = FORMATS.get(stored)
    if narrow is None or narrow.unit_roundoff <= computed.unit_roundoff:
        return KnownNumbers(values, units)
    return KnownNumbers(values, np.hypot(units, narrow.ulp(np.nan_to_num(values))), narrow.name)


def _of_array(array: np.ndarray, shape: tuple[int, ...], name: str) -> Array:
    """Return an array in float64; raise `UsageError` if its shape is another one or a number is not finite."""
    if array.shape != shape:
        raise UsageError(f"{name} is of shape {array.shape}, expected {shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise UsageError(
            f"{name}{[int(i) for i in bad[0]]} is {array[tuple(bad[0])]}: not a finite number, and no mistake explains it"
        )
    return np.asarray(array, np.float64)


def depth(tree: Any) -> int:
    """Return the number of axes of a tree."""
    if isinstance(tree, np.ndarray):
        return tree.ndim
    axes, level = 0, [tree]
    while lists := [part for part in level if isinstance(part, list | tuple)]:
        axes, level = axes + 1, [element for part in lists for element in part]
    return axes


def described(tree: Any) -> str:
    """Return the sizes of a tree, as `2 × 384`, or `2 × (5 to 9) × 384` if lists of one axis differ; `+` marks an ellipsis."""
    if isinstance(tree, np.ndarray):
        return " × ".join(map(str, tree.shape)) or "one number"
    axes, level = [], [tree]
    while lists := [part for part in level if isinstance(part, list | tuple)]:
        gaps = any(part in ELLIPSES for parts in lists for part in parts if isinstance(part, str))
        sizes = [sum(not (isinstance(part, str) and part in ELLIPSES) for part in parts) for parts in lists]
        least, most = min(sizes), max(sizes)
        axes.append((f"({least} to {most})" if least < most else str(most)) + "+" * gaps)
        level = [element for parts in lists for element in parts]
    return " × ".join(axes) or "one number"


def _read(text: Any, name: str, index: tuple[int, ...]) -> tuple[float, float]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UsageError(f"{_place(name, index)} is {text!r}, expected a number, null or '...'")
    rendered = str(text)
    try:
        return float(rendered), unit(rendered)
    except ValueError:
        why = (
            "it is not finite, and no mistake explains that"
            if rendered.lower().strip("+-") in ("nan", "inf", "infinity")
            else "no number"
        )
        raise UsageError(f"{_place(name, index)} is {rendered!r}: {why}; expected a number, null or '...'") from None


def _place(name: str, index: tuple[int, ...]) -> str:
    return f"{name}{list(index)}" if index else name


def _leaves(tree: Any, shape: tuple[int, ...], name: str, index: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield every number with its index."""
    if tree is None or (isinstance(tree, str) and tree in ELLIPSES):
        return
    if not shape:
        if isinstance(tree, list | tuple):
            raise UsageError(f"{_place(name, index)} is a list, expected a number: it has more axes than the output")
        yield index, tree
        return
    if not isinstance(tree, list | tuple):
        raise UsageError(f"{_place(name, index)} is {tree!r}, expected a list of {shape[0]}: it has fewer axes than the output")
    size = shape[0]
    gaps = [i for i, part in enumerate(tree) if isinstance(part, str) and part in ELLIPSES]
    if len(gaps) > 1:
        raise UsageError(f"{_place(name, index)} has {len(gaps)} ellipses, expected at most one")
    count = len(tree) - len(gaps)
    if count > size or (count < size and not gaps):
        raise UsageError(
            f"{_place(name, index)} has {count} entries, expected {size}"
            + ("" if gaps or count > size else " (write '...' or null for those that are not known)")
        )
    for i, part in enumerate(tree):
        if i not in gaps:
            place = i if not gaps or i < gaps[0] else size - len(tree) + i
            yield from _leaves(part, shape[1:], name, (*index, place))
