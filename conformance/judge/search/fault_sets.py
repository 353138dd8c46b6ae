"""Search for the smallest sets of faults that explain a problem's numbers.

1. Single faults are tried, those without a parameter before those with one. Where many faults are possible, only those that the
   first-order screening ranks highest are tried exactly.
2. If none explains the numbers, a second group of faults is tried, such as one fault at every step on which it acts.
3. If nothing explains the numbers, the few faults that bring the oracle nearest to them are each combined with the other faults,
   and so on (a beam search). If effects add up, the largest of n accounts for at least 1/n of the distance; a set whose last
   fault accounts for less is not extended.

Sets are compared on the part of the batch with the largest residual; those that this part does not refute are judged on the whole
batch. Sets that may be tied with an explanation are judged as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

from conformance.faults.fault import ALONE, ROWS
from conformance.judge.search.first_order_screen import ranked
from conformance.judge.search.parameters import GAIN, fitted, started
from conformance.judge.search.placements import EVERYWHERE, KIND, FaultPlacement
from conformance.judge.search.problem import AnyTrial, FittedFaults, Problem
from conformance.judge.threads import on_all_cores
from conformance.numerics.memo import cached_property

MOST_FAULTS = 3  # largest number of faults in a set; each further one costs another step of the beam search
KINDS, SINGLES = 30, 50  # how many faults in one kind of place, and in one layer or place, are tried exactly
FOLLOWED = 25  # number of faults that are tried on top of each set, where the screening says more than the trial itself
VERIFIED = 16  # number of sets that are judged on the whole batch, for each number of faults
RENOISED = 2  # number of the nearest sets that are judged by their own sigma, which costs several passes


@dataclass(frozen=True, eq=False)
class Search(Generic[AnyTrial]):
    """A search for the smallest sets of faults that explain the numbers.

    Attributes:
        whole: the numbers.
        placements: the faults that are tried alone and combined.
        fallback: the faults that are tried alone if none of `placements` explains the numbers.
        most_faults: largest number of faults in a set.
    """

    whole: Problem[AnyTrial]
    placements: Sequence[FaultPlacement]
    fallback: Sequence[FaultPlacement]
    most_faults: int = MOST_FAULTS

    def explaining(self) -> list[AnyTrial]:
        """Return the sets with the fewest faults that explain the numbers."""
        explaining, followed = list[AnyTrial](), [self.whole.none]
        for count in range(self.most_faults):
            if not followed:
                break
            part = self._part(followed[0])
            fits, explained = self._extended(followed, part) if count else self._single(part)
            explaining += explained
            if any(not trial.loose for trial in explaining) or (explaining and count):
                break
            followed = _different([fit for fit in fits if fit.distance <= fit.allowed])[: self.whole.beam]
        return explaining

    def _part(self, nearest: FittedFaults) -> Problem[AnyTrial]:
        """Return the problem on which sets are compared: the whole if the effect of a fault depends on other rows of the batch."""
        part = self.whole.part(nearest.placements)
        if part is not self.whole and self._couples_rows:
            return self.whole
        return part

    @cached_property
    def _couples_rows(self) -> bool:
        widest = [p for p in self.placements if p.reach == EVERYWHERE or not self.whole.is_screened]
        coupling = [p for p in widest if p.fault.extent == ROWS]
        return any(fit.distance < self.whole.none.distance for p in coupling if (fit := _with(self.whole, self.whole.none, p)))

    def _single(self, part: Problem[AnyTrial]) -> tuple[list[FittedFaults], list[AnyTrial]]:
        """Return the single faults that reduce the distance, nearest first, and all single faults that explain the numbers.

        If a fault without a parameter explains the numbers, and not incompletely, a fault with one is tried only if it comes near
        with its usual value.
        """
        fits, explained = list[FittedFaults](), list[AnyTrial]()
        for numbered in (False, True):
            added = [p for p in self.placements if (p.fault.parameter is not None) == numbered]
            if any(not trial.incomplete for trial in explained):
                added = [p for p in added if _is_nearer_by_half(part, p)]
            chosen = self._screened(part, added)
            found = self._improved(part, part.none, chosen)
            explained += self._verified(found, part)
            fits += found
        if not explained:
            explained = self._verified(
                self._improved(part, part.none, self.fallback)[: RENOISED if part.is_screened else None], part
            )
        return sorted(fits, key=lambda f: f.distance), explained

    def _screened(self, part: Problem[AnyTrial], placements: Sequence[FaultPlacement]) -> list[FaultPlacement]:
        """Return the faults that are tried exactly: all that act wherever they can, and the most promising others."""
        wide = [p for p in placements if p.reach == EVERYWHERE]
        others = [p for p in placements if p.reach != EVERYWHERE]
        if part.is_screened and len(others) > KINDS + SINGLES:
            others = ranked(part, part.none, others)
            others = [p for p in others if p.reach == KIND][:KINDS] + [p for p in others if p.reach != KIND][:SINGLES]
        return wide + others

    def _extended(self, followed: Sequence[FittedFaults], part: Problem[AnyTrial]) -> tuple[list[FittedFaults], list[AnyTrial]]:
        """Return the sets with one more fault, nearest first, and those that explain the numbers.

        First the nearest set of the beam is extended, then the others. If an extension of the nearest set explains the numbers,
        another set is extended only if its extensions could be tied with that explanation. Two tied sets yield numbers within √T of
        each other, where T is the evidence that distinguishes sets, in squares of sigma, so without the last fault the other set is
        farther than the nearest by at most √T.
        """
        fits, explained, (first, *others) = list[FittedFaults](), list[AnyTrial](), followed
        for members in ([first], others):
            if explained:
                most = math.sqrt(first.distance) + math.sqrt(self.whole.tie(first))
                members = [member for member in members if math.sqrt(member.distance) <= most]
            if members:
                added = self._with_one_more(part, members)
                explained += self._verified(added, part)
                fits += added
        return sorted(fits, key=lambda f: f.distance), explained

    def _with_one_more(self, part: Problem[AnyTrial], members: Sequence[FittedFaults]) -> list[FittedFaults]:
        """Return the sets extended by one more fault, nearest first; they may have been compared on another part of the batch."""
        found, seen = list[FittedFaults](), set[frozenset[object]]()
        beside = [p for p in self.placements if p.fault.tried != ALONE]
        for member in members:
            # Faults without effect on this part leave the residual there to another fault.
            known = part.evaluate(member.placements) or FittedFaults(member.placements, part.none.squares)
            further = [p for p in beside if not _overlaps(p, known.placements)]
            if part.is_screened and len(further) > FOLLOWED:
                further = ranked(part, known, further)
            chosen = [p for p in further if known.keys | {p.key} not in seen]
            chosen = chosen[:FOLLOWED] if part.is_screened else chosen
            seen.update(known.keys | {p.key} for p in chosen)
            found += self._with_each(part, known, chosen)
        return self._fitted(part, found)

    def _improved(self, part: Problem[AnyTrial], base: FittedFaults, added: Sequence[FaultPlacement]) -> list[FittedFaults]:
        """Return the base extended by each fault that reduces the distance, parameters fitted (`_fitted`), nearest first."""
        return self._fitted(part, self._with_each(part, base, added))

    def _with_each(self, part: Problem[AnyTrial], base: FittedFaults, added: Sequence[FaultPlacement]) -> list[FittedFaults]:
        """Return the base extended by each fault that reduces the distance; the extension's parameter has a first estimate."""
        share = 1.0 - 1.0 / (self.most_faults - len(base.placements))
        allowed = share * base.distance if self.whole.is_linear else math.inf
        extended = on_all_cores(lambda placement: _with(part, base, placement), added)
        return [replace(f, allowed=allowed) for f in extended if f is not None and f.distance < base.distance]

    def _fitted(self, part: Problem[AnyTrial], fits: Sequence[FittedFaults]) -> list[FittedFaults]:
        """Return the sets, nearest first; of those with parameters only the nearest, with their parameters fitted."""
        ordered = sorted(fits, key=lambda f: f.distance)
        plain = [f for f in ordered if not any(p.fault.parameter for p in f.placements)]
        numbered = [f for f in ordered if any(p.fault.parameter for p in f.placements)][: part.beam]
        least = 0.0 if self._is_final(part) else GAIN
        numbered = on_all_cores(lambda f: fitted(part, f, least), numbered)
        return sorted([*plain, *numbered], key=lambda f: f.distance)

    def _is_final(self, part: Problem[AnyTrial]) -> bool:
        """Return whether sets are compared on the whole batch, and parameters fitted there until they converge."""
        return part is self.whole and not part.is_screened

    def _verified(self, fits: Sequence[FittedFaults], part: Problem[AnyTrial]) -> list[AnyTrial]:
        """Return the nearest sets that explain the numbers of the whole batch.

        Once a set explains the numbers, only sets that may be tied with it are still judged.
        """
        explaining, farthest = list[AnyTrial](), math.inf
        for number, fit in enumerate(fits[:VERIFIED]):
            if fit.distance > farthest:
                break
            own_sigma = number < RENOISED
            left = fit if part is self.whole else part.fit_unless_refuted(fit, self.whole, own=own_sigma)
            on_whole = left if left is None or self._is_final(part) else self.whole.fit_on_whole(left)
            trial = None if on_whole is None else self.whole.judge(on_whole, own=own_sigma)
            if trial is not None and trial.explains:
                explaining.append(trial)
                if not trial.loose:
                    farthest = min(farthest, fit.distance + self.whole.tie(fit))
        return explaining


def _different(fits: Sequence[FittedFaults]) -> list[FittedFaults]:
    """Return one set for each set of fault names: the nearest represents all places of the same faults."""
    best: dict[tuple[str, ...], FittedFaults] = {}
    for fit in fits:
        best.setdefault(tuple(sorted(p.fault.name for p in fit.placements)), fit)
    return list(best.values())


def _overlaps(placement: FaultPlacement, others: Sequence[FaultPlacement]) -> bool:
    return any(o.fault.name == placement.fault.name and set(o.places) & set(placement.places) for o in others)


def _with(problem: Problem[AnyTrial], base: FittedFaults, placement: FaultPlacement) -> FittedFaults | None:
    problem.faulty(base.placements)  # computed and kept, so that steps before the placement are reused
    if placement.fault.parameter is not None:
        return started(problem, placement, base.placements)
    return problem.evaluate([*base.placements, placement])


def _is_nearer_by_half(problem: Problem[AnyTrial], placement: FaultPlacement) -> bool:
    """Return whether the fault with its usual value leaves less than half of the distance.

    A fault that explains the numbers with about its usual value leaves far less than half.
    """
    usual = problem.evaluate([placement])
    return usual is not None and usual.distance < problem.none.distance / 2.0
