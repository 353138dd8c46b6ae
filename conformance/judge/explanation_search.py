"""Search for explanations: sets of faults that account for a step's result.

A set of faults explains a failing activation if the activation passes once the oracle contains these faults. The residual under a
set is judged as a correct step's residual is: by its RMS, by its largest error and by the filters that detected a fault. The search
is that of `judge.search.fault_sets`; faults that no single one at one step explains are also applied at once to all unexposed
steps on which they can act. A library's or a setting's error, such as rounding the operands of products, affects all of them, and
effects of rounding do not add up. If no set of faults explains the result, functions and tensors are fitted to it.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults import CATALOGUE, reported_as
from conformance.faults.fitted import DESCRIPTIONS, FITTED, OF_RESULT
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.judge.evidence import Estimate, Explanation
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import is_detected, project
from conformance.judge.judged_elements import zeroed
from conformance.judge.search.fault_sets import MOST_FAULTS, Search
from conformance.judge.search.placements import EVERYWHERE, SINGLE, FaultPlacement
from conformance.judge.search.problem import Trial
from conformance.judge.step_problem import StepProblem
from conformance.numerics.formats import Array
from conformance.numerics.thresholds import evidence_threshold

_RANK = {fault.name: i for i, fault in enumerate(CATALOGUE)}


def explanations(
    problem: StepProblem, directions: Sequence[Direction], known: Collection[str] = (), *, per_token: bool = True
) -> tuple[Explanation, ...]:
    """Return every smallest set of faults that explains the candidate's array, the best first, else a fitted function or tensor."""
    return sets_of_faults(problem, directions, known) or fitted_explanations(problem, per_token=per_token)


def sets_of_faults(
    problem: StepProblem, directions: Sequence[Direction], known: Collection[str] = (), most_faults: int = MOST_FAULTS
) -> tuple[Explanation, ...]:
    """Return every smallest set of faults of the catalogue that explains the candidate's array, the best first.

    Args:
        problem: the data of the search.
        directions: the directions that are tried.
        known: names of faults that explained other activations. They are tried first, and the others if the known ones do not
            explain the array, or only with an unusual parameter value.
        most_faults: largest number of faults in a set; one costs a small part of what three do.
    """
    placements = [FaultPlacement(fault, (step,), SINGLE) for fault, step in dict.fromkeys((d.fault, d.step) for d in directions)]
    familiar = [p for p in placements if p.fault.name in known]
    best = _smallest(problem, familiar, most_faults) if familiar else ()
    return best if best and best[0].is_usual and not best[0].incomplete else _smallest(problem, placements, most_faults)


def is_of_catalogue(explanation: Explanation) -> bool:
    """Return whether all faults of an explanation are of the catalogue, that is, none is a fitted function or tensor."""
    return all(found.name in _RANK for found in explanation.faults)


def _smallest(problem: StepProblem, placements: Sequence[FaultPlacement], most_faults: int) -> tuple[Explanation, ...]:
    """Return the explanations with the fewest faults; none if each has as many numbers as the elements that it changes."""
    at_every_step = list(_at_every_step(placements)) if most_faults > 1 else []
    found = Search(problem, placements, at_every_step, most_faults).explaining()
    determined = [_explanation(trial, problem) for trial in found if problem.is_determined(trial)]
    return _ordered(determined, problem) if determined else ()


def _at_every_step(placements: Sequence[FaultPlacement]) -> Iterator[FaultPlacement]:
    """Yield each fault without a parameter, applied at once to all steps on which it acts, if there are several."""
    steps = dict[str, list[FaultPlacement]]()
    for placement in placements:
        if placement.fault.parameter is None:
            steps.setdefault(placement.fault.name, []).append(placement)
    for of_one in steps.values():
        if len(of_one) > 1:
            yield FaultPlacement(of_one[0].fault, tuple(p.places[0] for p in of_one), EVERYWHERE)


def _ordered(found: Sequence[Explanation], problem: StepProblem) -> tuple[Explanation, ...]:
    """Return the explanations by their evidence; those that it cannot distinguish, the simplest first.

    Of explanations whose costs (`Explanation.cost`) exceed the least by less than the evidence threshold, those with the fewest
    free parameters are first, usual values before others, then in the order of the catalogue. Two that are the same function have
    usual values if one of them has. An incomplete explanation has in the errors that it allows the freedom that others have in a
    parameter, so it is not taken for the simpler one: it is an explanation only if its cost is the least.
    """
    if not min(found, key=lambda e: e.cost).incomplete:
        found = [e for e in found if not e.incomplete]
    usual = {_functions(e) for e in found if e.is_usual}
    found = [replace(e, is_usual=_functions(e) in usual) for e in found]
    most = min(e.cost for e in found) + evidence_threshold(problem.threshold)
    ranked = sorted(found, key=lambda e: (e.cost >= most, (e.free, not e.is_usual) if e.cost < most else (), e.cost))
    best = ranked[0]
    alike = [e for e in ranked if (e.free, e.is_usual) == (best.free, best.is_usual) and e.cost < most]
    alike_in_order = sorted(alike, key=lambda e: sorted(_RANK[f.name] for f in e.faults))
    return (*alike_in_order, *(e for e in ranked if e not in alike))


def _functions(explanation: Explanation) -> frozenset[str]:
    """Return a key that is equal for explanations whose faults are the same functions; their places may differ."""
    return frozenset(reported_as(fault.name) for fault in explanation.faults)


def _explanation(trial: Trial, problem: StepProblem) -> Explanation:
    """Return the explanation of a trial: each fault has the result of its filter with all other faults in place."""
    order = {name: i for i, name in enumerate(problem.right.steps)}
    whole = problem.faulty(trial.fit.placements)
    applied = [
        (replace(placement, places=(place,)), number)
        for placement, number in zip(trial.fit.placements, trial.numbers, strict=True)
        for place in placement.places
        if placement.key in whole.effective.get(place, ())
    ]
    applied.sort(key=lambda pair: order[pair[0].places[0]])
    detected_faults = []
    for index, (placement, number) in enumerate(applied):
        base = problem.faulty([p for i, (p, _) in enumerate(applied) if i != index]).segment
        projection = project(problem.actual - base.value, whole.segment.value - base.value, problem.noise)
        if projection is not None:
            detected_faults.append(projection.result(placement.fault.name, placement.places[0], detected=True, estimate=number))
    numbers = [number for number in trial.numbers if number is not None]
    usual = all(number.is_usual(problem.storage, problem.threshold) for number in numbers)
    nll = problem.nll(whole.segment)
    return Explanation(tuple(detected_faults), len(numbers), nll, usual, problem.draw_count, trial.incomplete)


def fitted_explanations(
    problem: StepProblem, *, likely: Collection[str] = (), per_token: bool = True, fits: Sequence[Fitted] = FITTED
) -> tuple[Explanation, ...]:
    """Return the fit of a function or of whole tensors that explains the candidate's array best; empty if none explains it.

    It is the first that names a mistake, unless one that only describes the result (`Fitted.is_description`) is as good by the
    Bayesian information criterion (Schwarz 1978): Σ e² and ln n for each fitted number, with the n judged elements. A name that
    needs as many numbers as the description claims more than the result shows. Of several descriptions it is the best one.

    Args:
        problem: the data of the search.
        likely: names of faults that explain the array under a wider arithmetic; they are tried first.
        per_token: whether fits with numbers for each token are tried as well.
        fits: the fits that are tried; those of the result last.
    """
    right, noise = problem.right, problem.noise
    step = right.steps[right.name]
    data = FitData(problem.actual, noise.judged, np.hypot(noise.sigma, noise.bound), problem.threshold, right.network)
    named: _Explaining | None = None
    described: _Explaining | None = None
    for fault in sorted(fits, key=lambda fit: (fit.of_result, fit.name not in likely)):
        is_possible = fault.is_possible_at(step.site.activation.kind, right.name) and (
            right.is_single_step or fault.unexposed_parents
        )
        is_needless = (named and not fault.is_description) or (fault.of_result and (named or described))
        if not is_possible or is_needless or (fault.per_token and not per_token):
            continue
        with np.errstate(all="ignore"):  # An output may be zero in the checkpoint; a fit that is not finite explains nothing.
            fit = fault.fit(step, data)
            fits_of_fault = () if fit is None else (*fit.simpler, fit)
            found = next(filter(None, (_explaining(problem, fault.name, one) for one in fits_of_fault)), None)
        if found and not fault.is_description:
            named = found
        elif found and (described is None or found.is_better_than(described)):
            described = found
    best = named if named and (described is None or named.is_better_than(described)) else described
    return (best.explanation,) if best else ()


@dataclass(frozen=True, eq=False)
class _Explaining:
    """A fit that explains the candidate's array: its residual, and the precision of each judged element under it, else 0."""

    explanation: Explanation
    residual: Array
    precision: Array

    def is_better_than(self, other: "_Explaining") -> bool:
        """Return whether the Bayesian information criterion prefers this fit, under the larger noise of both at each element."""
        precision = np.minimum(self.precision, other.precision)
        mine, theirs = (float((precision * np.square(fit.residual)).sum()) for fit in (self, other))
        room = (other.explanation.free - self.explanation.free) * math.log(max(int((precision > 0.0).sum()), 1))
        return mine - theirs < room


def _explaining(problem: StepProblem, name: str, fit: Fit) -> _Explaining | None:
    """Return the fit if it explains the candidate's array, else None.

    Fits are tried last, since a fit has many free parameters. As for a fault without a parameter, the z of the residual on the
    fitted effect must exceed its threshold: a fit may also pass because it allows more errors of rounding, which is no evidence.
    A name needs two different elements that it changes: any function with a number explains a single one. An edit of the result,
    which may be any, needs more of them than it has numbers.
    """
    place = problem.right.name
    segment = problem.right.replacing(place, fit.step)
    if not (math.isfinite(fit.deviation) and problem.passes(segment)):
        return None
    least = fit.free if name in OF_RESULT else 0 if name in DESCRIPTIONS else min(fit.free, 1)
    if not problem.determines_more(least, segment):
        return None
    projection = project(problem.actual - problem.right.value, segment.value - problem.right.value, problem.noise)
    if projection is None or not is_detected(projection, problem.threshold, signed=True):
        return None
    number = Estimate(fit.parameter, 0.0, 0.0, fit.value, fit.deviation) if fit.parameter else None
    faults, nll = (projection.result(name, place, detected=True, estimate=number),), problem.nll(segment)
    explanation = Explanation(faults, fit.free, nll, draw_count=problem.draw_count)
    return _Explaining(
        explanation, zeroed(problem.actual - segment.value, problem.noise.judged), problem.noise_of(segment).precision
    )
