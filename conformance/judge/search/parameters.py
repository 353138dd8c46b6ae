"""Estimates of fault parameters by weighted least squares, all parameters of a set together (Gauss–Newton).

The weights are those of the noise of the segment with the faults, which may depend on the parameters. Computing the noise costs
many times as much as a step, so it is computed again only if a parameter's distance to its least sensible value has changed by more
than a factor of two, and only once the steps are small.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.judge.evidence import Estimate
from conformance.judge.number_words import closed_form
from conformance.judge.search.placements import FARTHEST, FaultPlacement
from conformance.judge.search.problem import FittedFaults, Problem
from conformance.numerics.formats import NUDGE, Array, as_array

# Convergence is quadratic near the solution. Far from it, each step triples the value under a root: 20 steps from 1e-9 to 1
# (3^20), and four to converge.
STEPS = 24
HALVINGS = 4  # how often a step that increases the distance is halved
GAIN = 1 / 64  # while fits are compared, a step that reduces the squares by a smaller share is the last
# A fit ends once a step gains less than `GAIN` and leaves an RMS of more than this multiple of the limit: if later steps gain no
# more, `STEPS` of them divide the RMS by at most (1 − 1/64)^(-STEPS/2) = 1.21. After a limited step they may gain more.
FAR = (1.0 - GAIN) ** (-STEPS / 2.0)
SETTLED = 1e-3  # in standard deviations; a shorter step changes no digit that is reported


def started(problem: Problem[Any], placement: FaultPlacement, others: Sequence[FaultPlacement] = ()) -> FittedFaults | None:
    """Return a fault with a first estimate of its parameter: the usual value, or one Gauss–Newton step from the correct one.

    The value with the smaller distance is chosen; if both increase the distance, the step is halved until it does not. Return None
    if no value changes anything.
    """
    right, wrong = placement.right(problem.right), placement.wrong(problem.right)
    fits: list[FittedFaults | None] = [problem.evaluate([*others, placement.of(wrong)])]
    nudged = problem.evaluate([*others, placement.of(right + NUDGE * abs(wrong - right))])
    if nudged is not None:
        correct = placement.of(right)  # Some mistakes are wrong with the correct number, too.
        change = problem.value(nudged.placements) - problem.value([*others, correct])
        squares = problem.squares(others)
        pooling_index, before = int(squares.argmin()), float(squares.min())
        weights = problem.weights[pooling_index]
        slope = change[pooling_index] / (NUDGE * abs(wrong - right)) * weights
        residual = problem.residual([*others, correct])[pooling_index] * weights
        energy = float((slope**2).sum())
        if energy > 0.0 and math.isfinite(energy):
            step = float((slope * residual).sum()) / energy
            fits += _farther(problem, correct, others, step)
            limited = correct.moved(step, problem.right).number(problem.right) - right
            for halving in range(1, HALVINGS + 1):
                if any(f is not None and f.squares[pooling_index] < before for f in fits):
                    break
                fits.append(problem.evaluate([*others, placement.of(right + limited / 2.0**halving)]))
    return min((f for f in fits if f is not None), key=lambda f: f.distance, default=None)


def _farther(problem: Problem[Any], start: FaultPlacement, others: Sequence[FaultPlacement], step: float) -> Iterator[FittedFaults]:
    """Yield the fit one step on; if the step is limited, go on in ever longer steps while the distance decreases."""
    right, nearest = problem.right, math.inf
    reached, limit = start.moved(step, right), start.moved(math.inf, right)
    while math.isfinite(reached.number(right)) and (fit := problem.evaluate([*others, reached])):
        if fit.distance >= (1.0 - GAIN) * nearest:
            return
        yield fit
        if reached.number(right) < limit.number(right):
            return
        nearest, reached = fit.distance, reached.moved(math.inf, right)
        limit = reached


def fitted(problem: Problem[Any], start: FittedFaults, least: float = 0.0) -> FittedFaults:
    """Improve all parameters of a set together until they converge.

    A step that reduces the squares by a share below `least`, or below `GAIN` if they remain far above every limit, is the last.
    """
    fit, index = start, start.pooling_index
    weights: Array | None = None
    ranges: Array = np.zeros(0)
    for _ in range(STEPS):
        slopes, free = _slopes(problem, fit)
        if not free:
            return fit
        now = _ranges(problem, fit, free)
        if weights is None or len(now) != len(ranges):
            weights, ranges = problem.weights_of(fit)[index], now
        step = _gauss_newton(problem, fit, slopes, weights)
        if step is not None and _has_changed(now, ranges) and (np.abs(step) <= now / 2.0).all():
            weights, ranges = problem.weights_of(fit)[index], now
            step = _gauss_newton(problem, fit, slopes, weights)
        better = None if step is None else _stepped(problem, fit, free, step, weights)
        if step is None or better is None:
            return fit
        left = _squares(problem, better, weights)
        gain = 1.0 - left / _squares(problem, fit, weights)
        fit, is_far = better, left > (FAR * problem.rms_limit) ** 2 * np.count_nonzero(weights)
        # A step that was limited is followed by longer ones, each of which may gain more.
        is_limited = _has_changed(_ranges(problem, fit, free), now, FARTHEST / 2.0)
        is_last = gain < (max(least, GAIN) if is_far else least) and not is_limited
        if is_last or (np.abs(step) * np.sqrt(np.square(slopes * weights).sum(1)) <= SETTLED).all():
            return fit
    return fit


def _gauss_newton(problem: Problem[Any], fit: FittedFaults, slopes: Array, weights: Array) -> Array | None:
    """Return the change of each parameter that least squares give; None if a slope is not finite."""
    matrix = slopes * weights
    if not np.isfinite(matrix).all():
        return None
    residual = problem.residual(fit.placements)[fit.pooling_index] * weights
    return as_array(np.linalg.lstsq(matrix.T, residual, rcond=None)[0])


def _ranges(problem: Problem[Any], fit: FittedFaults, free: Sequence[int]) -> Array:
    """Return the distance of each free parameter to its least sensible value."""
    placements = [fit.placements[i] for i in free]
    return np.array([p.number(problem.right) - p.parameter.least for p in placements])


def _has_changed(now: Array, before: Array, factor: float = 2.0) -> bool:
    """Return whether a distance to the least sensible value has changed by more than a factor."""
    return bool(((now > factor * before) | (now < before / factor)).any())


def _squares(problem: Problem[Any], fit: FittedFaults, weights: Array) -> float:
    """Return Σ r² w² under the set's pooling; infinite if the segment yields a non-finite number."""
    with np.errstate(all="ignore"):
        squares = float(np.square(problem.residual(fit.placements)[fit.pooling_index] * weights).sum())
    return squares if math.isfinite(squares) else math.inf


def _stepped(problem: Problem[Any], fit: FittedFaults, free: Sequence[int], step: Array, weights: Array) -> FittedFaults | None:
    """Return the fit one step on; the step is halved while it increases the distance. Return None if it does at every length."""
    before = _squares(problem, fit, weights)
    for halving in range(HALVINGS + 1):
        moved = list(fit.placements)
        for index, change in zip(free, step / 2.0**halving, strict=True):
            moved[index] = moved[index].moved(float(change), problem.right)
        nearer = problem.evaluate(moved)
        if nearer is not None and _squares(problem, nearer, weights) < before:
            return replace(nearer, allowed=fit.allowed)
    return None


def _slopes(problem: Problem[Any], fit: FittedFaults) -> tuple[Array, list[int]]:
    """Return the derivatives of the printed numbers by the K free parameters, (K, N), and the indices of their placements."""
    slopes, free = [], []
    for index, placement in enumerate(fit.placements):
        if placement.fault.parameter is None:
            continue
        value = placement.number(problem.right)
        nudge = NUDGE * max(abs(value), abs(placement.wrong(problem.right) - placement.right(problem.right)))
        moved = problem.value([*fit.placements[:index], placement.of(value + nudge), *fit.placements[index + 1 :]])
        slope = (moved - problem.value(fit.placements))[fit.pooling_index] / nudge
        if slope.any():
            slopes.append(slope)
            free.append(index)
    return (np.array(slopes) if slopes else np.zeros((0, problem.weights.shape[1]))), free


def estimates(
    problem: Problem[Any], fit: FittedFaults, projected: Callable[[Array], tuple[float, float]], weights: Array
) -> tuple[Estimate | None, ...]:
    """Return the estimate of each fault's parameter; None for a fault without a parameter.

    With J the slopes and W the squared weights, noise n changes the estimates by (J W Jᵀ)⁻¹ J W n; each row is a direction to
    project on. The deviations therefore include all correlations of the noise, and those among the parameters.

    Args:
        problem: the numbers.
        fit: the faults with their parameters.
        projected: function of a direction, (N,), that returns the variance of the noise along it and the largest contribution of
            deterministic errors, as `Noise.projected`.
        weights: the weights of the set's pooling, (N,).
    """
    slopes, free = _slopes(problem, fit)
    of_faults: list[Estimate | None] = []
    gains = np.linalg.pinv(slopes * weights).T * weights if free else slopes
    for index, placement in enumerate(fit.placements):
        if placement.fault.parameter is None:
            of_faults.append(None)
            continue
        deviation, bound = math.inf, 0.0
        if index in free:
            variance, bound = projected(gains[free.index(index)])
            # Deterministic errors are taken as uniform within their bound.
            deviation = math.hypot(math.sqrt(variance), bound / math.sqrt(3.0))
        parameter, value = placement.parameter, placement.number(problem.right)
        right, wrong = placement.right(problem.right), placement.wrong(problem.right)
        form = closed_form(parameter, value, deviation, problem.right.network.architecture)
        of_faults.append(Estimate(parameter.name, right, wrong, value, deviation, bound, form))
    return tuple(of_faults)
