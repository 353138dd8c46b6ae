"""What a residual is made of: what was made, out of the right value and the step's own ingredients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from conformance.judge.makeup.arrangement import permutations, rearrangements
from conformance.judge.makeup.case import Case, Finding, Number
from conformance.judge.makeup.degenerate import constant, few_elements, not_finite, zeroed
from conformance.judge.makeup.gains import gains, gains_and_shifts, shifts
from conformance.judge.makeup.inner import scaled_parents
from conformance.judge.makeup.maps import linear_maps, other_functions, transposed_weight
from conformance.judge.makeup.residue import fewer_bits, larger_noise
from conformance.judge.makeup.terms import multiples, terms
from conformance.judge.selection import Mask

__all__ = ["Case", "Finding", "Number", "makeup"]

# By how much each leaves free: what explains with few numbers is not looked for with more.
_STAGES: tuple[tuple[Callable[[Case], Iterator[Finding]], ...], ...] = (
    (constant, multiples, rearrangements, transposed_weight),
    (permutations, terms, scaled_parents),
    (shifts, gains, gains_and_shifts),
    (linear_maps, other_functions),
    (fewer_bits, zeroed),
    (larger_noise,),
)


def makeup(case: Case, region: Mask) -> tuple[Finding, ...]:
    """Findings that explain what was made in the affected region, with as few free numbers as any; or, where none does, those that
    account for a share: each for more than all that leave fewer numbers free, and for more than chance would.
    """
    broken = not_finite(case) or few_elements(case)
    return (broken,) if broken else _described(case if region is case.judged else replace(case, judged=region))


def _described(case: Case) -> tuple[Finding, ...]:
    if not case.count:
        return ()  # thinning left none of the few elements that are judged
    partial: list[Finding] = []
    for stage in _STAGES:
        found = list(chain.from_iterable(look(case) for look in stage))
        explaining = [f for f in found if f.explained]
        if explaining:
            return _simplest(explaining)
        partial += [f for f in found if case.notable(f)]
    return _worthwhile(partial)


def _simplest(found: Sequence[Finding]) -> tuple[Finding, ...]:
    least = min(f.freedom for f in found)
    return tuple(sorted((f for f in found if f.freedom == least), key=lambda f: f.remaining))


def _worthwhile(found: Sequence[Finding]) -> tuple[Finding, ...]:
    best: list[Finding] = []
    for finding in sorted(found, key=lambda f: (f.freedom, -f.share)):
        if not best or finding.share > best[-1].share:
            best.append(finding)
    return tuple(reversed(best))
