"""Description of a residual that no known mistake explains: where it is, and what it is composed of.

Nothing here decides whether a step is correct. A step that has already failed is described by the location of its residual
(`judge.localization`), and by models of the candidate's array (`judge.residual_models`), which are computed from the correct value
and the step's own inputs and parameters. A model explains the residual if it leaves one that a correct candidate could have; other
models are reported with the share of the residual that they account for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from conformance.judge.depth import NO_PATTERN
from conformance.judge.localization import Localization, localize, rendered
from conformance.judge.residual_models.arrangement import permutations, rearrangements
from conformance.judge.residual_models.degenerate import constant, few_elements, fewer_bits, larger_noise, not_finite, zeroed
from conformance.judge.residual_models.linear_combinations import gains, gains_and_shifts, multiples, scaled_parents, shifts, terms
from conformance.judge.residual_models.other_functions import linear_maps, other_functions, transposed_weight
from conformance.judge.residual_models.residual_problem import TINY, ResidualFinding, ResidualProblem
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import ErrorLimits
from conformance.oracle import Step

# Ordered by the number of free parameters: if a stage explains the residual, later stages are not tried.
_STAGES: tuple[tuple[Callable[[ResidualProblem], Iterator[ResidualFinding]], ...], ...] = (
    (constant, multiples, rearrangements, transposed_weight),
    (permutations, terms, scaled_parents),
    (shifts, gains, gains_and_shifts),
    (linear_maps, other_functions),
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
