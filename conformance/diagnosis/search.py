"""The search: which sets of one to three faults bring the oracle nearest to the numbers that were printed.

One fault: wherever it can act on, tried exactly; in one kind of place, in one layer or at one place, those that first order ranks
foremost. Two and three: a beam from the best, each with what first order ranks foremost on top of it. Sets are compared on
the part of the batch that shows most; the caller judges those that it does not refute on all of it.
"""

from collections.abc import Sequence

import numpy as np

from conformance.diagnosis.fitting import GAIN, Fit, Problem, fitted, started
from conformance.diagnosis.hypotheses import EVERYWHERE, KIND, FaultPlacement
from conformance.diagnosis.screening import ranked
from conformance.diagnosis.search_budget import FAULTS, SearchBudget
from conformance.judge.cores import on_all_cores

TOKENS = 32  # of the rows that sets are compared on: a pass costs as many
NUMBERS = 64  # that those rows should show; to distinguish some hundred sets takes fewer
KINDS, SINGLES = 30, 50  # faults in one kind of place, and in one layer or place, that are tried exactly
FITTED = 4  # faults with a number whose number is fitted further than one step, of those tried together
BEAM = 4  # sets that are followed further
FOLLOWED = 25  # faults that are tried on top of each


def rows_to_search(problem: Problem, placements: Sequence[FaultPlacement] = ()) -> list[int]:
    """Rows of the batch that show most of what the network with these faults leaves, until they have numbers and tokens enough."""
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
    """Every fault alone that is nearer than none, nearest first; those of formats are `rounded`'s."""
    base = _none(problem)
    ordered = ranked(problem, base, [s for s in placements if s.reach != EVERYWHERE])
    kinds = [s for s in ordered if s.reach == KIND][:KINDS]
    narrow = [s for s in ordered if s.reach > KIND][:SINGLES]
    wide = [s for s in placements if s.reach == EVERYWHERE and not s.fault.late]
    added = [*wide, *kinds, *narrow]
    budget.begin(FAULTS[0], len(added))
    return _improved(problem, base, added, budget)


def rounded(problem: Problem, placements: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Operands, weights or results in another format than promised: each rounds every weight of the network."""
    late = [s for s in placements if s.fault.late]
    budget.begin(FAULTS[0], len(late))
    return _improved(problem, _none(problem), late, budget)


def more(problem: Problem, beam: Sequence[Fit], placements: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """Sets with one fault more than those of the beam, nearest first; these may come from other rows of the batch."""
    found: list[Fit] = []
    seen: set[frozenset[object]] = set()
    budget.begin(FAULTS[len(beam[0].placements)], len(beam) * FOLLOWED)
    for known in beam:
        if budget.is_spent():
            break
        fit = problem.tried(known.placements)
        if fit is None:  # nothing on these rows: it is the other fault that shows there
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
    """The set with a fault without a number in place of one that has one, at the same places; nearest first."""
    found = []
    for index, numbered in enumerate(fit.placements):
        if numbered.fault.parameter is not None:
            plain = [s for s in placements if s.places == numbered.places and s.fault.parameter is None and not s.fault.late]
            found += [problem.tried([*fit.placements[:index], s, *fit.placements[index + 1 :]]) for s in plain]
    return sorted((f for f in found if f is not None), key=lambda f: f.distance)


def _none(problem: Problem) -> Fit:
    return Fit((), problem.squares(problem.right))


def beam_of(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest that are followed, one for each set of names: of places where a fault may be, the nearest stands for all."""
    best: dict[tuple[str, ...], Fit] = {}
    for fit in fits:
        best.setdefault(tuple(sorted(s.fault.name for s in fit.placements)), fit)
    return list(best.values())[:BEAM]


def _overlaps(placement: FaultPlacement, others: Sequence[FaultPlacement]) -> bool:
    return any(o.fault.name == placement.fault.name and set(o.places) & set(placement.places) for o in others)


def _improved(problem: Problem, base: Fit, added: Sequence[FaultPlacement], budget: SearchBudget) -> list[Fit]:
    """The base with each placement, where that is nearer; the foremost numbers fitted. Nearest first."""
    tried = budget.of_each(lambda placement: _with(problem, base, placement), added)
    fits = sorted((f for f in tried if f is not None), key=lambda f: f.distance)
    numbers = [] if budget.is_spent() else [f for f in fits if any(s.fault.parameter for s in f.placements)][:FITTED]
    refined = dict(zip(map(id, numbers), on_all_cores(lambda f: fitted(problem, f, GAIN), numbers), strict=True))
    found = [refined.get(id(f), f) for f in fits]
    return sorted((f for f in found if f.distance < base.distance), key=lambda f: f.distance)


def _with(problem: Problem, base: Fit, placement: FaultPlacement) -> Fit | None:
    problem.forward(base.placements)  # what is before the placement is taken from it
    if placement.fault.parameter is not None:
        return started(problem, placement, base.placements)
    return problem.tried([*base.placements, placement])
