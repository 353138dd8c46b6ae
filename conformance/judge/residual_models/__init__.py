"""Models of a residual: the candidate's array as a function of the expected value and of the step's inputs and parameters."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from conformance.judge.residual_models.arrangement import permutations, rearrangements
from conformance.judge.residual_models.degenerate import constant, few_elements, not_finite, zeroed
from conformance.judge.residual_models.gains import gains, gains_and_shifts, shifts
from conformance.judge.residual_models.linear_combinations import multiples, scaled_parents, terms
from conformance.judge.residual_models.other_functions import linear_maps, other_functions, transposed_weight
from conformance.judge.residual_models.residual_problem import ResidualFinding, ResidualProblem
from conformance.judge.residual_models.unstructured import fewer_bits, larger_noise
from conformance.numerics.formats import Mask

__all__ = ["ResidualFinding", "ResidualProblem", "residual_findings"]

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
