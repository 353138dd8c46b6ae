"""Description of a residual that no known mistake explains: where it is, and what it is composed of.

Nothing here decides whether a step is correct. A step that has already failed is described by the location of its residual, that
is, the number of judged elements beyond the limit and the slices along each axis that hold them; and by models of the candidate's
array (`judge.residual_models`), which are computed from the correct value and the step's own inputs and parameters. A model
explains the residual if it leaves one that a correct candidate could have; other models are reported with the share of the residual
that they account for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from conformance.judge import NO_PATTERN
from conformance.judge.error_distribution import heads_in
from conformance.judge.number_words import listed
from conformance.judge.residual_models.arrangement import permutations, rearrangements
from conformance.judge.residual_models.degenerate import constant, few_elements, fewer_bits, larger_noise, not_finite, zeroed
from conformance.judge.residual_models.linear_combinations import gains_and_shifts, multiples, terms
from conformance.judge.residual_models.other_functions import other_functions
from conformance.judge.residual_models.residual_problem import TINY, ResidualFinding, ResidualProblem
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.thresholds import ErrorLimits
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


# Ordered by the number of free parameters: if a stage explains the residual, later stages are not tried.
_STAGES: tuple[tuple[Callable[[ResidualProblem], Iterator[ResidualFinding]], ...], ...] = (
    (constant, multiples, rearrangements),
    (permutations, terms),
    (gains_and_shifts,),
    (other_functions,),
    (fewer_bits, zeroed),
    (larger_noise,),
)


def residual_findings(case: ResidualProblem, region: Mask) -> tuple[ResidualFinding, ...]:
    """Return the findings that explain the candidate's array in the affected region, with the fewest fitted numbers.

    If none explains it, return findings that account for a share of the residual: each for more than every finding with fewer
    fitted numbers, and for more than chance would.
    """
    broken = not_finite(case) or few_elements(case)
    return (broken,) if broken else _described(case if region is case.judged else replace(case, judged=region))


def _described(case: ResidualProblem) -> tuple[ResidualFinding, ...]:
    if not case.count:
        return ()  # thinning left none of the few judged elements
    partial: list[ResidualFinding] = []
    for stage in _STAGES:
        found = list(chain.from_iterable(look(case) for look in stage))
        explaining = [f for f in found if f.explained]
        if explaining:
            return _simplest(explaining)
        partial += [f for f in found if case.notable(f)]
    return _worthwhile(partial)


def _simplest(found: Sequence[ResidualFinding]) -> tuple[ResidualFinding, ...]:
    least = min(f.freedom for f in found)
    return tuple(sorted((f for f in found if f.freedom == least), key=lambda f: f.remaining))


def _worthwhile(found: Sequence[ResidualFinding]) -> tuple[ResidualFinding, ...]:
    best: list[ResidualFinding] = []
    for finding in sorted(found, key=lambda f: (f.freedom, -f.share)):
        if not best or finding.share > best[-1].share:
            best.append(finding)
    return tuple(reversed(best))


@dataclass(frozen=True)
class ResidualDescription:
    """The description of a residual.

    Attributes:
        localization: where the residual is.
        residual_findings: models of the candidate's array in that region, best first. Either each of them alone explains the
            residual there, or none does, and each accounts for a share of it.
    """

    localization: Localization
    residual_findings: tuple[ResidualFinding, ...] = ()


def describe_residual(
    step: Step, actual: Array, sigma: Array, bound: Array | float, judged: Mask, limits: ErrorLimits
) -> ResidualDescription:
    """Return the description of the residual that a candidate has when it computes an activation from the parents of `step`.

    Args:
        step: the oracle's step on the candidate's own parents.
        actual: the candidate's array.
        sigma: standard deviation of each element's random error.
        bound: largest deterministic error of each element.
        judged: mask of the elements that count.
        limits: largest RMS and largest error, in sigma, that an explanation may leave.
    """
    shape = actual.shape
    case = ResidualProblem(
        step,
        np.where(judged, actual, step.value),
        np.maximum(sigma, np.abs(step.value) * np.finfo(np.float64).eps + TINY),  # An exact step is held to float64 precision.
        np.broadcast_to(as_array(bound, np.float64), shape),
        np.broadcast_to(judged, shape),
        limits,
    )
    if not case.judged.any():
        return ResidualDescription(Localization(0, 0))
    found, region = localize(case)
    return ResidualDescription(found, residual_findings(case, region))


def sentences(found: ResidualDescription) -> tuple[str, ...]:
    """Return a sentence that states where the residual is, and one for each model that explains it or a share of it."""
    there = "there " if found.localization.places else ""
    made_of = [there + _sentence(f) for f in found.residual_findings] or [NO_PATTERN]
    return (rendered(found.localization), *made_of)


def _sentence(finding: ResidualFinding) -> str:
    if finding.kind == "noise":
        return finding.sentence  # a description of the whole error, after which nothing remains
    if finding.explained:
        return f"{finding.sentence}; what remains is within rounding"
    if not finding.share:
        return finding.sentence
    return f"{finding.sentence}; that accounts for {100.0 * finding.share:.4g} % of the squared error, not for all"
