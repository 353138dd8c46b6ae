"""What a residual is made of: the candidate's array, from the expected value and the step's own ingredients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from conformance.judge.residual_models.arrangement import permutations, rearrangements
from conformance.judge.residual_models.degenerate import constant, few_elements, not_finite, zeroed
from conformance.judge.residual_models.gains import gains, gains_and_shifts, shifts
from conformance.judge.residual_models.inner import scaled_parents
from conformance.judge.residual_models.maps import linear_maps, other_functions, transposed_weight
from conformance.judge.residual_models.residual_problem import FittedNumber, ResidualFinding, ResidualProblem
from conformance.judge.residual_models.residue import fewer_bits, larger_noise
from conformance.judge.residual_models.terms import multiples, terms
from conformance.judge.selection import Mask

__all__ = ["FittedNumber", "ResidualFinding", "ResidualProblem", "makeup"]

# By how much each leaves free: what explains with few numbers is not looked for with more.
_STAGES: tuple[tuple[Callable[[ResidualProblem], Iterator[ResidualFinding]], ...], ...] = (
    (constant, multiples, rearrangements, transposed_weight),
    (permutations, terms, scaled_parents),
    (shifts, gains, gains_and_shifts),
    (linear_maps, other_functions),
    (fewer_bits, zeroed),
    (larger_noise,),
)


def residual_findings(case: ResidualProblem, region: Mask) -> tuple[ResidualFinding, ...]:
    """Findings that explain the candidate's array in the affected region, with the fewest free numbers.

    Where none does, those that account for a share of it: each for more than all with fewer free numbers, and for more than
    chance would.
    """
    broken = not_finite(case) or few_elements(case)
    return (broken,) if broken else _described(case if region is case.judged else replace(case, judged=region))


def _described(case: ResidualProblem) -> tuple[ResidualFinding, ...]:
    if not case.count:
        return ()  # thinning left none of the few elements that are judged
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
