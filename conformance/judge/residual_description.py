"""Description of a residual that nothing explains: where it is, and how large it is.

Nothing here decides whether a step is correct. A step that has already failed is described by the location of its residual, that
is, the number of judged elements beyond the limit and the slices along each axis that hold them; and by its size, or by the few
elements that are wrong. A residual over several steps may have the size that computing in a narrower format would leave: a runtime
may choose its format itself and store the results in the promised one. Rounding then differs with every kernel that fuses steps
differently, so that no change of the oracle's steps accounts for the residual.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformance.faults.fault import PRODUCTS
from conformance.judge.error_distribution import heads_in
from conformance.judge.number_words import listed
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import FORMATS, RELATIVE_RMS, Array, Format, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.numerics.thresholds import ErrorLimits
from conformance.oracle import Step

FEW = 3  # up to this number, elements are listed and counted; more are reported as a percentage
_TINY = 2.0**-200  # smallest sigma for which squares of errors in sigma remain finite

USUAL = (0.3, 2.0)  # RMS in sigma of correct runs, measured over the goldens and the benchmarks' pages
HALF = ("bfloat16", "float16")
_SAID = "as much as computing in {} would leave"
_REMEDY = (
    "autocast sets a format, and a runtime may choose its own; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE); a small error in one equation or weight may leave as much: expose more activations to place it"
)

_SIDES = ("keys before the query", "each query's own key", "keys after the query")


@dataclass(frozen=True, eq=False)
class Residual:
    """The difference between a candidate's array and the result of the oracle's step on the candidate's own parents.

    Attributes:
        step: the step.
        actual: the candidate's array.
        sigma, bound: random and deterministic error of each element.
        judged: mask of the elements that count.
        limits: largest RMS and largest error, in sigma.
    """

    step: Step
    actual: Array
    sigma: Array
    bound: Array | float
    judged: Mask
    limits: ErrorLimits

    @cached_property
    def difference(self) -> Array:
        """Actual minus expected value; 0 where not judged."""
        return np.where(self.judged, self.actual - self.step.value, 0.0)

    @cached_property
    def scaled(self) -> Array:
        """The absolute difference in sigma after subtracting the bound; an exact step is held to float64 precision."""
        sigma = np.maximum(self.sigma, np.abs(self.step.value) * np.finfo(np.float64).eps + _TINY)
        return np.maximum(np.abs(self.difference) - self.bound, 0.0) / sigma

    @cached_property
    def beyond(self) -> Mask:
        """The judged elements that are beyond the limit, or not finite."""
        return as_array(self.judged & ~(self.scaled <= self.limits.max))

    def passes(self, elements: Mask) -> bool:
        """Return whether the RMS of some elements is within its limit."""
        return bool(np.sqrt(np.mean(self.scaled[elements] ** 2)) <= self.limits.rms)


def describe_residual(residual: Residual) -> tuple[str, ...]:
    """Return sentences that state where a residual is, and what its few wrong elements, or its size, are."""
    if not residual.judged.any():
        return ()
    places, region = localize(residual)
    return _where(residual, places), _not_finite(residual) or _few_elements(residual) or _size(residual, region)


def _not_finite(residual: Residual) -> str:
    """Return how many elements are infinite or NaN; an empty text if none is."""
    wrong = residual.judged & ~np.isfinite(residual.actual)
    if not wrong.any():
        return ""
    nans, place = int(np.isnan(residual.actual[wrong]).sum()), tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} elements are not finite ({nans} NaN, {int(wrong.sum()) - nans} infinite), the first at {place}"


def _few_elements(residual: Residual) -> str:
    """Return the elements beyond the limit if they are at most `FEW` and the others pass, or there are no others."""
    outside, places = residual.judged & ~residual.beyond, np.argwhere(residual.beyond)
    if not 0 < len(places) <= FEW or (outside.any() and not residual.passes(outside)):
        return ""
    rendered = "; ".join(_element(residual, place) for place in places)
    return f"only {len(places)} element{'s are' if len(places) > 1 else ' is'} wrong: {rendered}" if outside.any() else rendered


def _element(residual: Residual, place: npt.NDArray[np.int64]) -> str:
    actual, expected = (float(x[tuple(place)]) for x in (residual.actual, residual.step.value))
    ratio = f", {actual / expected:.6g} times" if expected else ""
    return f"{tuple(int(i) for i in place)}: {actual:.6g} for {expected:.6g}{ratio}"


def _size(residual: Residual, region: Mask) -> str:
    """Return the RMS of the error relative to that of the values, and the significant bits that would leave as much."""
    error, value = (float(np.sqrt(np.mean(x[region] ** 2))) for x in (residual.difference, residual.step.value))
    if not error or not value:
        return f"the RMS of the error there is {error:.3g}"
    bits = -np.log2(error / value / RELATIVE_RMS)
    size = f"as large as rounding to {bits:.1f} significant bits would leave" if bits >= 1.0 else "as large as the values"
    return f"the RMS of the error there is {100.0 * error / value:.2g} % of that of the values, {size}"


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


def localize(residual: Residual) -> tuple[tuple[Region, ...], Mask]:
    """Return the affected slices of each axis outside of which all passes, and the mask of the judged elements in them."""
    region, places = residual.judged, []
    for view in _views(residual.step):
        hit, there = view.collapse(residual.beyond), view.collapse(residual.judged)
        inside = residual.judged & view.spread(hit)
        if hit.any() and (hit < there).any() and residual.passes(residual.judged & ~inside):
            indices = tuple(int(i) for i in np.flatnonzero(hit))
            places.append(Region(view.axis, indices, len(hit), _words(view.axis, indices, len(hit))))
            region = region & inside
    return _without_repetition(tuple(places)), region


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


def _where(residual: Residual, places: tuple[Region, ...]) -> str:
    """Return a sentence that states the location."""
    beyond, judged = int(residual.beyond.sum()), int(residual.judged.sum())
    if not beyond:
        return f"none of the {judged} judged elements is beyond the limit by itself: the error is spread over them"
    count = f"{100.0 * beyond / judged:.3g} %" if beyond > FEW else str(beyond)
    where = f"all at {', '.join(p.words for p in places)}" if places else "not confined to a part of any axis"
    return f"{count} of the {judged} judged elements {'is' if count == '1' else 'are'} beyond the limit, {where}"


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """Return a sentence for each half-precision format in whose sigma the residual is usual.

    There is none for a single step, for steps without a product, and for a single number.

    Args:
        segment: several steps, from the captured activations.
        actual: the candidate's array.
        judged: mask of the elements that count.
        storage: the promised format.
        largest: the largest error, in sigma, that a correct run may have.
    """
    has_products = any(step.site.activation.kind in PRODUCTS for step in segment.steps.values())
    if not actual.ndim or not has_products or segment.is_single_step:
        return ()
    sentences = []
    for name in HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, representative_hypothesis(name)), actual.shape))
            error = np.where(judged, (actual - segment.value) / sigma, 0.0)
            rms, most = math.sqrt(float(np.square(error).sum()) / int(judged.sum())), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                size = f"RMS {rms:.2g}, largest {most:.2g}, in units of its rounding error"
                sentences.append(f"{_SAID.format(name)}: {size}; {_REMEDY.format(storage=storage.name)}")
    return tuple(sentences)


def format_of(sentence: str) -> str:
    """Return the format that a sentence of `narrower_format` names; empty for other sentences."""
    return next((name for name in HALF if sentence.startswith(_SAID.format(name))), "")
