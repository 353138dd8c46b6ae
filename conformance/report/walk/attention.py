"""Attention as heat maps, one a head: how much each token (query) takes from each (key). Pure functions of the probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from conformance.numerics.formats import Array
from conformance.report.html.svg import cells, drawing, element

STEPS = tuple(2.0**-n for n in range(6, 0, -1))  # the least probability of each shade: each is twice the one before
LONGEST = 32  # tokens that are drawn one by one: with their names, all that a telephone's width holds
_CELL, _SMALL = 12.0, 6.0  # sides of a cell with a name beside it, at the least, and of one without
_ROOM = 96.0  # a map of few tokens has larger cells, up to a half more, until it is as large as this
_LETTER, _LETTERS = 6.3, 8  # width of a letter of a name, and how many of them are shown
_BELOW = 3.5  # from the middle of a letter to its foot


@dataclass(frozen=True)
class Head:
    """What one head does with one row of a batch.

    Attributes:
        number: which head.
        shades: (queries, keys), how many of `STEPS` the probability reaches.
        block: how many tokens stand together in a row or column; the largest of their probabilities is drawn.
        favourite, share: the token that gets most of all attention, and how much of it.
    """

    number: int
    shades: npt.NDArray[np.intp]
    block: int
    favourite: str
    share: float


def heads(probs: Array, tokens: Sequence[str], attended: npt.NDArray[np.bool_]) -> list[Head]:
    """Of one row's probabilities (heads, queries, keys); tokens that are not attended to are left out."""
    kept = [token for token, seen in zip(tokens, attended, strict=True) if seen]
    block = -(-len(kept) // LONGEST)
    found = []
    for number, head in enumerate(probs[:, attended][:, :, attended]):
        taken = head.mean(axis=0)
        best = int(taken.argmax())
        shades = np.searchsorted(STEPS, pooled(head, block), side="right")
        found.append(Head(number, shades, block, kept[best], float(taken[best])))
    return found


def pooled(values: Array, block: int) -> Array:
    """The largest of each block × block of a square, the last ones cut short; the square itself for blocks of one."""
    starts = np.arange(0, len(values), block)
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(values, starts, axis=0), starts, axis=1))


def heat_map(head: Head, tokens: Sequence[str]) -> Markup:
    """A head as SVG, queries downwards, keys to the right; `tokens`, those attended to, stand beside it unless they are pooled."""
    labels = [_cut(token) for token in tokens] if head.block == 1 else []
    cell = min(max(_CELL, _ROOM / len(labels)), 1.5 * _CELL) if labels else _SMALL
    margin = max((len(label) for label in labels), default=0) * _LETTER + 4 if labels else 0.0
    side = len(head.shades) * cell
    paths = (
        element("path", d=cells((int(x), int(y)) for y, x in np.argwhere(head.shades == shade)), class_=f"s{shade}")
        for shade in range(1, len(STEPS) + 1)
        if (head.shades == shade).any()
    )
    size = len(head.shades)
    ground = element("rect", width=size, height=size, class_="ground")
    map_ = element("g", ground, *paths, transform=f"translate({margin:g} {margin:g})scale({cell:g})")
    beside = (
        element("text", label, x=margin - 4, y=margin + (i + 0.5) * cell + _BELOW, text_anchor="end")
        for i, label in enumerate(labels)
    )
    above = (
        element("text", label, transform=f"translate({margin + (i + 0.5) * cell + _BELOW:g} {margin - 4:g})rotate(-90)")
        for i, label in enumerate(labels)
    )
    said = f"head {head.number}: {favourite(head)}"
    return drawing(margin + side, margin + side, said, map_, *beside, *above, class_="head")


def favourite(head: Head) -> str:
    """Where most of its attention goes."""
    return f"{head.share:.0%} to {head.favourite}"


def _cut(token: str) -> str:
    return token if len(token) <= _LETTERS else f"{token[: _LETTERS - 1]}…"
