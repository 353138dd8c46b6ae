"""The search: which sets of one to three faults bring the oracle nearest to the numbers that were printed.

One fault: wherever it can strike and in each kind of place, tried exactly; in one layer or at one place, those that first order
ranks foremost. Two and three: a beam from the best, each with what first order ranks foremost on top of it. Sets are compared on
the part of the batch that shows most; the caller judges them on all of it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.diagnosis.fitting import Fit, Problem, fitted, started
from conformance.diagnosis.hypotheses import KIND, Strike
from conformance.diagnosis.screening import ranked

TOKENS = 48  # of the rows that sets are compared on: a pass costs as many
SINGLES = 80  # faults in one layer or place that are tried exactly
FITTED = 8  # faults with a number whose number is fitted; the others keep what one step gave
BEAM = 4  # sets that are followed further, each with another fault as its last
FOLLOWED = 40  # faults that are tried on top of each


def rows_to_search(problem: Problem) -> list[int]:
    """Rows of the batch, those with most to explain first, and one with padding, up to `TOKENS` tokens."""
    network = problem.right.network
    batch, reading = network.batch, network.reading
    if (reading.rows < 0).any():
        return list(range(batch.size))
    left = (((problem.made - problem.right.value) / problem.sigma) ** 2).min(0)
    by_row = np.bincount(reading.rows, left, batch.size)
    order = [int(i) for i in np.argsort(-by_row, kind="stable") if by_row[i] > 0.0]
    padded = [i for i in order if not batch.mask[i].all()]
    typed = [i for i in order if batch.types[i].any()]
    wanted = list(dict.fromkeys([*order[:1], *padded[:1], *typed[:1], *order]))
    return sorted(wanted[: max(TOKENS // batch.length, 1)])


def one(problem: Problem, strikes: Sequence[Strike]) -> list[Fit]:
    """Every fault alone that is nearer than none, nearest first."""
    base = _none(problem)
    wide = [s for s in strikes if s.reach <= KIND]
    narrow = ranked(problem, base, [s for s in strikes if s.reach > KIND])[:SINGLES]
    return _improved(problem, base, [*wide, *narrow])


def more(problem: Problem, fits: Sequence[Fit], strikes: Sequence[Strike]) -> list[Fit]:
    """Sets with one fault more, nearest first."""
    found: list[Fit] = []
    seen: set[frozenset[object]] = set()
    for fit in _beam(fits):
        have = {s.key for s in fit.strikes}
        further = [s for s in strikes if not s.fault.late and not _overlaps(s, fit.strikes)]
        chosen: list[Strike] = []
        for strike in ranked(problem, fit, further):
            key = frozenset([*have, strike.key])
            if key not in seen and len(chosen) < FOLLOWED:
                seen.add(key)
                chosen.append(strike)
        found += _improved(problem, fit, chosen)
    return sorted(found, key=lambda f: f.distance)


def _none(problem: Problem) -> Fit:
    return Fit((), problem.squares(problem.right))


def _beam(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest, one for each fault that was added last."""
    best: dict[tuple[str, ...], Fit] = {}
    for fit in fits:
        best.setdefault(tuple(sorted(s.fault.name for s in fit.strikes)), fit)
    return list(best.values())[:BEAM]


def _overlaps(strike: Strike, others: Sequence[Strike]) -> bool:
    return any(o.fault.name == strike.fault.name and set(o.places) & set(strike.places) for o in others)


def _improved(problem: Problem, base: Fit, added: Sequence[Strike]) -> list[Fit]:
    """The base with each strike, where that is nearer; the foremost numbers fitted. Nearest first."""
    fits = sorted(_tried(problem, base, added), key=lambda f: f.distance)
    numbers = [f for f in fits if any(s.fault.parameter for s in f.strikes)][:FITTED]
    refined = {id(f): fitted(problem, f) for f in numbers}
    found = [refined.get(id(f), f) for f in fits]
    return sorted((f for f in found if f.distance < base.distance), key=lambda f: f.distance)


def _tried(problem: Problem, base: Fit, added: Sequence[Strike]) -> Iterator[Fit]:
    for strike in added:
        if strike.fault.parameter is not None:
            fit = started(problem, strike, base.strikes)
        else:
            fit = problem.tried([*base.strikes, strike])
        if fit is not None:
            yield fit
