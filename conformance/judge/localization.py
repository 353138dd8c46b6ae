"""Location of a residual: the number of judged elements beyond the limit, and the slices along each axis that hold them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from conformance.judge.error_distribution import heads_in
from conformance.judge.number_words import listed
from conformance.judge.residual_models.residual_problem import ResidualProblem
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Mask
from conformance.oracle import Step

FEW = 3  # up to this number, elements are counted; more are reported as a percentage

_SIDES = ("keys before the query", "each query's own key", "keys after the query")


@dataclass(frozen=True)
class Region:
    """Slices of one axis that contain the whole residual.

    Attributes:
        axis: `batch row`, `position`, `head`, `query`, `key`, `feature`, `feature of a head` or `side` (of the key, seen from the
            query).
        indices: indices of the affected slices.
        size: number of slices along the axis.
        words: description of the affected slices.
    """

    axis: str
    indices: tuple[int, ...]
    size: int
    words: str


@dataclass(frozen=True)
class Localization:
    """The location of a residual.

    Attributes:
        beyond, judged: number of elements that are beyond the limit or not finite, and number of judged elements.
        places: the affected slices of each axis on which not all slices are affected; the elements outside of them pass.
    """

    beyond: int
    judged: int
    places: tuple[Region, ...] = ()

    @property
    def share(self) -> float:
        """The fraction of the judged elements that are beyond the limit."""
        return self.beyond / max(self.judged, 1)


@dataclass(frozen=True)
class _View:
    """A way of slicing an array.

    Attributes:
        axis: name of the axis.
        collapse: maps a mask of elements to the slices that contain any of them.
        spread: maps a mask of slices to a mask of their elements, which broadcasts to the array.
    """

    axis: str
    collapse: Callable[[Mask], Mask]
    spread: Callable[[Mask], Mask]


def localize(case: ResidualProblem) -> tuple[Localization, Mask]:
    """Return the location of the residual, and the mask of the judged elements in the affected slices."""
    beyond = case.judged & ~(case.scaled <= case.limits.max)  # non-finite elements count as beyond
    counts = int(beyond.sum()), int(case.judged.sum())
    region, places = case.judged, []
    for view in _views(case.step):
        hit, there = view.collapse(beyond), view.collapse(case.judged)
        inside = case.judged & view.spread(hit)
        if hit.any() and (hit < there).any() and _passes(case, case.judged & ~inside):
            indices = tuple(int(i) for i in np.flatnonzero(hit))
            places.append(Region(view.axis, indices, len(hit), _words(view.axis, indices, len(hit))))
            region = region & inside
    return Localization(*counts, _without_repetition(tuple(places))), region


def _passes(case: ResidualProblem, outside: Mask) -> bool:
    """Return whether the RMS of the remaining slices is within its limit; none of their elements is beyond the maximum."""
    return bool(np.sqrt(np.mean(case.scaled[outside] ** 2)) <= case.limits.rms)


def _without_repetition(places: tuple[Region, ...]) -> tuple[Region, ...]:
    """Return the regions, with features expressed by head and place within a head, or by number, but not both."""
    found = {p.axis: p for p in places}
    by_head, within, features = found.get("head"), found.get("feature of a head"), found.get("feature")
    if features is None or not (by_head or within):
        return places
    heads = by_head.indices if by_head else range(features.size // within.size if within else 0)
    size = within.size if within else features.size // (by_head.size if by_head else 1)
    inner = within.indices if within else range(size)
    same = {h * size + i for h in heads for i in inner} == set(features.indices)
    alone = by_head is not None and within is not None and len(by_head.indices) == 1
    drop = ("feature",) if same and not alone else ("head", "feature of a head")
    return tuple(p for p in places if p.axis not in drop)


def _words(axis: str, indices: tuple[int, ...], size: int) -> str:
    if axis == "side":
        return " and ".join(_SIDES[i] for i in indices)
    if axis != "feature of a head":
        return listed(axis, indices, size)
    if len(indices) == 1 and indices[0] in (0, size - 1):
        return f"the {'last' if indices[0] else 'first'} feature of each head"
    return f"{listed('feature', indices, size)} of each head"


def _views(step: Step) -> Iterator[_View]:
    row, shape = step.site.activation, step.value.shape
    for number, axis in enumerate(row.axes):
        yield _axis_view("batch row" if axis == "batch" else axis, number, len(shape))
    size = step.site.architecture.head_size
    if row.axes and (heads := heads_in(row, shape[-1], size)):
        yield from _head_views(heads, size)
    if row.axes[-2:] == ("query", "key") and shape[-1] > 1:
        yield _side_view(shape[-1])


def _axis_view(name: str, number: int, dimensions: int) -> _View:
    others = tuple(i for i in range(dimensions) if i != number)

    def spread(slices: Mask) -> Mask:
        return slices.reshape([-1 if i == number else 1 for i in range(dimensions)])

    return _View(name, lambda m: as_array(m.any(others)), spread)


def _head_views(heads: int, size: int) -> Iterator[_View]:
    def by_head(mask: Mask) -> Mask:
        return as_array(mask.reshape(-1, heads, size).any(0))

    yield _View("head", lambda m: as_array(by_head(m).any(1)), lambda s: np.repeat(s, size))
    yield _View("feature of a head", lambda m: as_array(by_head(m).any(0)), lambda s: np.tile(s, heads))


def _side_view(length: int) -> _View:
    side = np.sign(np.arange(length) - np.arange(length)[:, None]) + 1

    def collapse(mask: Mask) -> Mask:
        pairs: Mask = as_array(mask.reshape(-1, length, length).any(0))
        return np.array([pairs[side == s].any() for s in range(len(_SIDES))])

    return _View("side", collapse, lambda s: s[side])


def rendered(found: Localization) -> str:
    """Return a sentence that states the location."""
    if not found.beyond:
        return f"none of the {found.judged} judged elements is beyond the limit by itself: the error is spread over them"
    count = f"{100.0 * found.share:.3g} %" if found.beyond > FEW else str(found.beyond)
    where = f"all at {', '.join(p.words for p in found.places)}" if found.places else "not confined to a part of any axis"
    return f"{count} of the {found.judged} judged elements {'is' if count == '1' else 'are'} beyond the limit, {where}"
