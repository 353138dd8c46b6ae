"""Search for explanations: sets of faults that account for a step's result.

A set of faults explains a failing activation if the activation passes once the oracle contains these faults. The search proceeds
as follows:

1. Single faults are tried, those without a parameter before those with one.
2. Each fault is applied at once to all hidden steps on which it can act. A library's or a setting's error, such as rounding the
   operands of products, affects all of them, and effects of rounding do not add up.
3. If nothing explains the result, the few faults that bring the oracle nearest to the candidate's array are each combined with
   every other fault, and so on (a beam search). Of n faults with orthogonal effects the largest accounts for at least a share 1/n
   of the remaining distance, so a set that reduces the distance by less is not followed further.

The parameters of all faults in a set are estimated together. The residual under a set is judged as a correct step's residual is:
by its RMS, by its largest error and by the filters that detected a fault.

Sets are compared on a part of the batch (`ExplanationProblem.part`); the sets that this part does not refute are judged on the
whole batch.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults import CATALOGUE
from conformance.faults.fitted import FITTED
from conformance.faults.fitted.fitted_fault import FitData
from conformance.judge.evidence import Estimate, Explanation, FilterResult
from conformance.judge.fault_directions import Direction
from conformance.judge.filters import NoiseOf, fitted, project, started
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.judge.thresholds import evidence_threshold
from conformance.numerics.formats import Array, Format

AT_ONCE = 3  # largest number of faults at one step; each further one costs BEAM times as many trials as there are faults
BEAM = 6  # number of sets that are extended by another fault
_RANK = {fault.name: i for i, fault in enumerate(CATALOGUE)}
SWEEPS = 3  # largest number of rounds in which each parameter is estimated given the others


_Applied = tuple[Direction, Estimate | None]


@dataclass(frozen=True)
class ExplanationProblem:
    """The data of one explanation search.

    Attributes:
        segment: the oracle's segment.
        actual: the candidate's array.
        noise: the error that a correct candidate may make.
        threshold: the threshold of |z|.
        noise_of: returns the noise of a segment, correct or faulty.
        passes: returns whether a segment accounts for the candidate's array, by RMS and largest error.
        nll: returns the negative log-likelihood of the candidate's array under a segment, in nats.
        called: the directions whose filters detected that the residual is not noise.
        subtle: the faults without a parameter that may explain the result alone: they move no element by far more than the largest
            error.
        loose: whether a fit with parameters for each token may explain the result.
        part: returns the same problem on the rows of the batch where a segment leaves the largest residual; a segment that leaves
            gross errors there is refuted. Returns None if a part is not informative enough.
    """

    segment: Segment
    actual: Array
    noise: Noise
    threshold: float
    noise_of: NoiseOf
    passes: Callable[[Segment], bool]
    nll: Callable[[Segment], float]
    called: Sequence[Direction] = ()
    subtle: Sequence[Direction] = ()
    loose: bool = True
    part: Callable[[Segment], "ExplanationProblem | None"] = lambda _: None

    def distance(self, segment: Segment) -> float:
        """Return Σ r²/(σ² + b²), where r is the residual under a segment."""
        residual = self.actual - segment.value
        return float(np.vdot(self.noise.precision * residual, residual))


@dataclass(frozen=True)
class _Trial:
    """A sequence of directions, each applied on top of the previous ones, with parameter values and the remaining distance.

    Attributes:
        applied: the directions with their estimates.
        segment: the segment with all of them.
        distance: `ExplanationProblem.distance` of the segment.
        landed: the directions that change something; on a part of the batch this may be a subset.
        allowed: the largest distance at which the trial is followed further.
    """

    applied: tuple[_Applied, ...]
    segment: Segment
    distance: float
    landed: tuple[_Applied, ...] = ()
    allowed: float = 0.0


def explanations(
    problem: ExplanationProblem, candidates: Sequence[Direction], known: Collection[str] = ()
) -> tuple[Explanation, ...]:
    """Return every smallest set of faults that explains the candidate's array: fewest free parameters first, then the likeliest.

    Faults whose names are in `known` are tried alone first; other faults are tried if the known ones do not explain the array, or
    only with an unusual parameter value. If no fault explains the array, fitted functions and tensors are tried.

    Args:
        problem: the data of the search.
        candidates: the directions that are tried.
        known: names of faults that explained other activations.
    """
    return _searched(problem, candidates, known, AT_ONCE) or fitted_explanations(problem)


def is_of_catalogue(explanation: Explanation) -> bool:
    """Return whether all faults of an explanation are of the catalogue, that is, none is a fitted function or tensor."""
    return all(found.name in _RANK for found in explanation.faults)


def single_explanations(
    problem: ExplanationProblem, candidates: Sequence[Direction], known: Collection[str] = ()
) -> tuple[Explanation, ...]:
    """Return the explanations that consist of a single fault; this costs a small part of what `explanations` does."""
    return _searched(problem, candidates, known, 1)


def fitted_explanations(
    problem: ExplanationProblem, _: Sequence[Direction] = (), __: Collection[str] = ()
) -> tuple[Explanation, ...]:
    """Return the step with a function or whole tensors fitted to the candidate's array, if such a fit explains the array."""
    return tuple(_by_fitting(problem))


def _searched(
    problem: ExplanationProblem, candidates: Sequence[Direction], known: Collection[str], at_once: int
) -> tuple[Explanation, ...]:
    familiar = [candidate for candidate in candidates if candidate.fault.name in known]
    found = _smallest(problem, familiar, at_once) if familiar else ()
    return found if found and found[0].is_usual else _smallest(problem, candidates, at_once)


def _smallest(problem: ExplanationProblem, candidates: Sequence[Direction], at_once: int) -> tuple[Explanation, ...]:
    """Return the explanations with the fewest faults."""
    level = [_Trial((), problem.segment, problem.distance(problem.segment))]
    is_divisible = not any(_extended(level, [c for c in candidates if c.fault.across], problem, 1.0))
    beside = [c for c in candidates if c.fault.combines or not c.fault.late]
    for left in range(at_once, 0, -1):
        part = problem.part(level[0].segment) if is_divisible else None
        on = part or problem
        level = [_on(trial, on) for trial in level]
        if left == at_once:
            trials, found = _single(level[0], candidates, on, problem, 1.0 - 1.0 / left)
        else:
            trials = _nearest(_extended(level, beside, on, 1.0 - 1.0 / left), on)
            found = _explaining(trials, on, problem)
        if not found and left == at_once > 1:
            found = _explaining(_at_every_step(candidates, on), on, problem)
        if found:
            return _ordered([_explanation(trial, problem) for trial in found], problem)
        followed = sorted((t for t in trials if t.distance <= t.allowed), key=lambda t: t.distance)[:BEAM]
        level = [whole for t in followed[:1] if (whole := _settled(t, on, problem))] + followed[1:]
        if not level:
            return ()
    return ()


def _single(
    none: _Trial, candidates: Sequence[Direction], on: ExplanationProblem, problem: ExplanationProblem, leaving: float
) -> tuple[list[_Trial], list[_Trial]]:
    """Return the trials of single faults, and those of them that explain the array.

    If a fault without a parameter explains the array, a fault with one is tried only if it comes near with its usual wrong value.
    """
    trials, found = list[_Trial](), list[_Trial]()
    for has_number in (False, True):
        those = [c for c in candidates if (c.parameter is not None) == has_number]
        if found:
            those = [c for c in those if _is_nearer_by_half(none, c, on)]
        added = list(_extended([none], those, on, leaving))
        added = _nearest(added, on) if has_number else added
        found += _explaining(added, on, problem)
        trials += added
    return trials, found


def _nearest(trials: Iterable[_Trial], problem: ExplanationProblem) -> list[_Trial]:
    """Return the few nearest trials, with their parameters estimated."""
    nearest = sorted(trials, key=lambda t: t.distance)[:BEAM]
    return [replace(_refined(t, problem), allowed=t.allowed) for t in nearest]


def _is_nearer_by_half(none: _Trial, candidate: Direction, problem: ExplanationProblem) -> bool:
    """Return whether the fault with its usual value leaves less than half of the distance.

    A fault that explains the array with about its usual value leaves far less than half.
    """
    usual = candidate.on(none.segment).usual
    return usual is not None and problem.distance(usual) < none.distance / 2.0


def _explaining(trials: Iterable[_Trial], on: ExplanationProblem, problem: ExplanationProblem) -> list[_Trial]:
    """Return the trials that explain the whole array.

    A trial on a part of the batch is judged on the whole batch unless the part refutes it.
    """
    if on is not problem:
        trials = [whole for t in trials if on.passes(t.segment) and (whole := _settled(t, on, problem))]
    return [trial for trial in trials if _is_wrong(trial, problem) and _explains(trial.segment, problem)]


def _settled(trial: _Trial, on: ExplanationProblem, problem: ExplanationProblem) -> _Trial | None:
    """Return a trial on a part applied to the whole, its parameters estimated there; None if one of its faults changes nothing."""
    if on is problem:
        return trial
    whole = _made_of(trial.applied, problem)
    return None if whole is None else _refined(whole, problem)


def _on(trial: _Trial, problem: ExplanationProblem) -> _Trial:
    """Return the same faults with the same parameters on a part of the batch, where some of them may change nothing."""
    return trial if trial.segment.network is problem.segment.network else _placed(trial.applied, problem)


def _at_every_step(candidates: Iterable[Direction], problem: ExplanationProblem) -> Iterator[_Trial]:
    """Yield each fault without a parameter, applied at once to all steps on which it acts, if there are several.

    A trial is yielded only if it reduces the distance to the candidate's array: a fault that rounds increases the noise, within
    which any small fault would pass.
    """
    steps, without = dict[str, list[_Applied]](), problem.distance(problem.segment)
    for candidate in candidates:
        if candidate.parameter is None:
            steps.setdefault(candidate.fault.name, []).append((candidate, None))
    actual = (_placed(of_one, problem) for of_one in steps.values() if len(of_one) > 1)
    return (replace(t, applied=t.landed) for t in actual if len(t.landed) > 1 and t.distance < without)


def _ordered(found: Sequence[Explanation], problem: ExplanationProblem) -> tuple[Explanation, ...]:
    """Return the explanations by number of free parameters, usual values before others, then likelihood.

    Explanations whose likelihoods cannot be distinguished are in the order of the catalogue.
    """
    ranked = sorted(found, key=lambda e: (e.free, not e.is_usual, e.nll))
    best = ranked[0]
    most = best.nll + evidence_threshold(problem.threshold)
    alike = [e for e in ranked if (e.free, e.is_usual) == (best.free, best.is_usual) and e.nll < most]
    alike_in_order = sorted(alike, key=lambda e: sorted(_RANK[f.name] for f in e.faults))
    return (*alike_in_order, *(e for e in ranked if e not in alike))


def _extended(
    level: Sequence[_Trial], candidates: Sequence[Direction], problem: ExplanationProblem, leaving: float
) -> Iterator[_Trial]:
    """Yield every set with one more fault that reduces the distance.

    A set is followed further if it leaves at most the share `leaving` of the distance.
    """
    seen: set[frozenset[tuple[str, str]]] = set()
    for trial in level:
        have = frozenset((d.fault.name, d.step) for d, _ in trial.applied)
        for candidate in candidates:
            now = have | {(candidate.fault.name, candidate.step)}
            if now == have or now in seen:
                continue
            seen.add(now)
            extended = _with(trial, candidate, problem)
            if extended is not None and extended.distance < trial.distance:
                yield replace(extended, allowed=leaving * trial.distance)


def _with(trial: _Trial, candidate: Direction, problem: ExplanationProblem) -> _Trial | None:
    added, estimate = candidate.on(trial.segment), None
    if added.moved is None:
        return None
    if added.parameter is not None:
        estimate = started(added, problem.actual, problem.noise)
        if estimate is None or estimate.value == estimate.right:
            return None
    extended = _placed((*trial.applied, (added, estimate)), problem)
    return extended if len(extended.landed) > len(trial.landed) else None


def _made_of(applied: Sequence[_Applied], problem: ExplanationProblem) -> _Trial | None:
    """Return the trial with the faults applied on top of each other; None if one of them changes nothing."""
    found = _placed(applied, problem)
    return found if found.landed == found.applied else None


def _placed(applied: Sequence[_Applied], problem: ExplanationProblem) -> _Trial:
    """Return the trial with the faults applied on top of each other, in the order in which their steps are computed."""
    order = {name: i for i, name in enumerate(problem.segment.steps)}
    base, placed, landed = problem.segment, list[_Applied](), list[_Applied]()
    for known, estimate in sorted(applied, key=lambda pair: order[pair[0].step]):
        on = known.on(base)
        after = on.usual if estimate is None else on.applied(estimate.value)
        placed.append((on, estimate))
        if after is not None:
            base = after
            landed.append(placed[-1])
    return _Trial(tuple(placed), base, problem.distance(base), tuple(landed))


def _refined(trial: _Trial, problem: ExplanationProblem) -> _Trial:
    """Return the trial with each parameter estimated again, given the others."""
    for _ in range(min(sum(estimate is not None for _, estimate in trial.applied), SWEEPS)):
        for index, (_, estimate) in enumerate(trial.applied):
            if estimate is not None:
                better = _made_of(_reestimated(trial, index, problem), problem)
                if better is None or (better.distance > trial.distance and estimate.deviation < math.inf):
                    continue
                trial = better
    return trial


def _reestimated(trial: _Trial, index: int, problem: ExplanationProblem) -> list[_Applied]:
    """Return the faults with the parameter of one estimated while all the others are in place."""
    known, estimate = trial.applied[index]
    others = _made_of([pair for i, pair in enumerate(trial.applied) if i != index], problem)
    assert estimate is not None
    assert known.parameter is not None
    if others is None:
        return list(trial.applied)
    again = fitted(known.on(others.segment), known.parameter, problem.actual, problem.noise_of, estimate.value)
    return [(d, again if i == index else e) for i, (d, e) in enumerate(trial.applied)]


def _is_wrong(trial: _Trial, problem: ExplanationProblem) -> bool:
    """Return whether every parameter differs from its correct value by more than its error; otherwise the fault is not present."""
    return all(e is None or e.is_wrong(problem.threshold) for _, e in trial.applied)


def _explains(segment: Segment, problem: ExplanationProblem) -> bool:
    """Return whether the residual under the segment passes as a correct step's residual."""
    if not problem.passes(segment):
        return False
    noise, residual = problem.noise_of(segment), problem.actual - segment.value
    found = (project(residual, called.moved, noise) for called in problem.called if called.moved is not None)
    return all(p is None or abs(p.z) <= problem.threshold for p in found)


def _explanation(trial: _Trial, problem: ExplanationProblem) -> Explanation:
    """Return the explanation of a trial: each fault has the result of its filter with all other faults in place."""
    filtered = []
    for index, (known, estimate) in enumerate(trial.applied):
        others = _made_of([pair for i, pair in enumerate(trial.applied) if i != index], problem)
        base = problem.segment if others is None else others.segment
        moved = trial.segment.value - base.value
        found = project(problem.actual - base.value, moved, problem.noise)
        if found is not None:
            own = FilterResult(known.fault.name, known.step, found.amplitude, found.z, found.expected_z)
            filtered.append(own.as_detected(True, estimate))
    free = sum(estimate is not None for _, estimate in trial.applied)
    usual = all(e is None or _is_usual(e, d.place.storage, problem.threshold) for d, e in trial.applied)
    return Explanation(tuple(filtered), free, problem.nll(trial.segment), usual)


def _is_usual(estimate: Estimate, storage: Format, threshold: float) -> bool:
    """Return whether the estimate is the usual wrong value, which the candidate may have rounded to its format."""
    room = threshold * estimate.deviation + storage.unit_roundoff * abs(estimate.wrong)
    return abs(estimate.value - estimate.wrong) <= room


def _by_fitting(problem: ExplanationProblem) -> Iterator[Explanation]:
    """Yield the first fit of a function or of whole tensors to the candidate's array that explains it.

    Fits are tried last, since a fit has many free parameters.
    """
    name = problem.segment.name
    step, noise = problem.segment.steps[name], problem.noise
    seen = FitData(problem.actual, noise.judged, np.hypot(noise.sigma, noise.bound), problem.threshold)
    for fault in FITTED:
        if (
            (fault.loose and not problem.loose)
            or not fault.is_possible_at(step.site.activation.kind, name)
            or not (problem.segment.is_single_step or fault.hidden_parents)
        ):
            continue
        fit = fault.fit(step, seen)
        if fit is None:
            continue
        segment = problem.segment.replacing(name, fit.step)
        if problem.passes(segment):
            moved = segment.value - problem.segment.value
            found = project(problem.actual - problem.segment.value, moved, problem.noise)
            if found is not None:
                result = FilterResult(fault.name, name, found.amplitude, found.z, found.expected_z)
                number = Estimate(fit.parameter, 0.0, 0.0, fit.value, fit.deviation) if fit.parameter else None
                yield Explanation((result.as_detected(True, number),), fit.free, problem.nll(segment))
                return
