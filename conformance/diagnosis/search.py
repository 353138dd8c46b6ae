"""Search for the sets of one to three faults that bring the oracle nearest to the printed numbers.

Single faults that act wherever they can are all tried exactly. Of those in one kind of place, in one layer or at one place, only
the faults that the first-order screening ranks highest are tried. Sets of two and three faults are found by a beam search from the
best sets, each extended by the faults that the screening ranks highest on top of it. Sets are compared on the part of the batch
with the largest residual; the caller judges the sets that this part does not refute on the whole batch.
"""

from collections.abc import Sequence

import numpy as np

from conformance.diagnosis.fitting import GAIN, Fit, Problem, fitted, started
from conformance.diagnosis.placements import EVERYWHERE, KIND, FaultPlacement
from conformance.diagnosis.screening import ranked
from conformance.diagnosis.search_budget import FAULTS, SearchBudget
from conformance.judge.cores import on_all_cores

TOKENS = 32  # number of tokens in the rows on which sets are compared; the cost of a pass is proportional to it
NUMBERS = 64  # how many numbers these rows should have; fewer suffice to distinguish some hundred sets
KINDS, SINGLES = 30, 50  # how many faults in one kind of place, and in one layer or place, are tried exactly
FITTED = 4  # how many of the faults with a parameter that are tried together have it fitted by more than one step
BEAM = 4  # number of sets that are extended by another fault
FOLLOWED = 25  # number of faults that are tried on top of each set


def rows_to_search(problem: Problem, placements: Sequence[FaultPlacement] = ()) -> list[int]:
    """Return the rows of the batch with the largest residual under these faults, until there are enough numbers and tokens."""
    batch, reading = problem.right.network.batch, problem.right.network.reading
    if (reading.rows < 0).any():
        return list(range(batch.size))
    with np.errstate(all="ignore"):
        left = (((problem.actual - problem.value(placements)) / problem.sigma) ** 2).min(0)
    by_row = np.bincount(reading.rows, np.where(np.isfinite(left), left, np.finfo(np.float32).max), batch.size)
    numbers = np.bincount(reading.rows, minlength=batch.size)
    chosen: list[int] = []
    for row in np.argsort(-by_row, kind="stable"):
        if chosen and (len(chosen) + 1) * batch.length > TOKENS and numbers[chosen].sum() >= NUMBERS:
            break
        if numbers[row]:
            chosen.append(int(row))
    return sorted(chosen)


def one(problem: Problem, placements: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Return the single faults that reduce the distance, nearest first; faults of formats are left to `rounded`."""
    base = _none(problem)
    ordered = ranked(problem, base, [s for s in placements if s.reach != EVERYWHERE])
    kinds = [s for s in ordered if s.reach == KIND][:KINDS]
    narrow = [s for s in ordered if s.reach > KIND][:SINGLES]
    wide = [s for s in placements if s.reach == EVERYWHERE and not s.fault.late]
    added = [*wide, *kinds, *narrow]
    budget.begin(FAULTS[0], len(added))
    return _improved(problem, base, added, budget)


def rounded(problem: Problem, placements: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Return the faults of operands, weights or results in another format than promised, nearest first.

    Each of them rounds every weight of the network.
    """
    late = [s for s in placements if s.fault.late]
    budget.begin(FAULTS[0], len(late))
    return _improved(problem, _none(problem), late, budget)


def more(problem: Problem, beam: Sequence[Fit], placements: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Return the sets of the beam extended by one more fault, nearest first; the beam may have been compared on other rows."""
    found: list[Fit] = []
    seen: set[frozenset[object]] = set()
    budget.begin(FAULTS[len(beam[0].placements)], len(beam) * FOLLOWED)
    for known in beam:
        if budget.is_spent():
            break
        fit = problem.tried(known.placements)
        if fit is None:  # These faults have no effect on these rows, so the residual there is due to another fault.
            fit = Fit(known.placements, problem.squares(problem.right))
        have = {s.key for s in fit.placements}
        further = [s for s in placements if not s.fault.late and not _overlaps(s, fit.placements)]
        chosen: list[FaultPlacement] = []
        for placement in ranked(problem, fit, further):
            key = frozenset([*have, placement.key])
            if key not in seen and len(chosen) < FOLLOWED:
                seen.add(key)
                chosen.append(placement)
        found += _improved(problem, fit, chosen, budget)
    return sorted(found, key=lambda f: f.distance)


def simpler(problem: Problem, fit: Fit, placements: Sequence[FaultPlacement]) -> list[Fit]:
    """Return the set with one parametrized fault replaced by a fault without a parameter at the same places, nearest first."""
    found = []
    for index, numbered in enumerate(fit.placements):
        if numbered.fault.parameter is not None:
            plain = [s for s in placements if s.places == numbered.places and s.fault.parameter is None and not s.fault.late]
            found += [problem.tried([*fit.placements[:index], s, *fit.placements[index + 1 :]]) for s in plain]
    return sorted((f for f in found if f is not None), key=lambda f: f.distance)


def _none(problem: Problem) -> Fit:
    return Fit((), problem.squares(problem.right))


def beam_of(fits: Sequence[Fit]) -> list[Fit]:
    """Return the nearest sets to extend, one for each set of fault names: the nearest represents all places of the same faults."""
    best: dict[tuple[str, ...], Fit] = {}
    for fit in fits:
        best.setdefault(tuple(sorted(s.fault.name for s in fit.placements)), fit)
    return list(best.values())[:BEAM]


def _overlaps(placement: FaultPlacement, others: Sequence[FaultPlacement]) -> bool:
    return any(o.fault.name == placement.fault.name and set(o.places) & set(placement.places) for o in others)


def _improved(problem: Problem, base: Fit, added: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Return the base extended by each placement that reduces the distance, nearest first.

    The parameters of the nearest extensions are fitted.
    """
    tried = budget.of_each(lambda placement: _with(problem, base, placement), added)
    fits = sorted((f for f in tried if f is not None), key=lambda f: f.distance)
    numbers = [] if budget.is_spent() else [f for f in fits if any(s.fault.parameter for s in f.placements)][:FITTED]
    refined = dict(zip(map(id, numbers), on_all_cores(lambda f: fitted(problem, f, GAIN), numbers), strict=True))
    found = [refined.get(id(f), f) for f in fits]
    return sorted((f for f in found if f.distance < base.distance), key=lambda f: f.distance)


def _with(problem: Problem, base: Fit, placement: FaultPlacement) -> Fit | None:
    problem.forward(base.placements)  # computed and kept, so that steps before the placement are reused
    if placement.fault.parameter is not None:
        return started(problem, placement, base.placements)
    return problem.tried([*base.placements, placement])
