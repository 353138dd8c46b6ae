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

from conformance.faults import Parameter
from conformance.judge.evidence import Estimate
from conformance.judge.number_words import closed_form
from conformance.judge.search.placements import FaultPlacement
from conformance.judge.search.problem import FittedFaults, Problem
from conformance.judge.segment import Segment
from conformance.numerics.formats import NUDGE, Array, as_array

# Convergence is quadratic near the solution. Far from it, each step triples the value under a root: 20 steps from 1e-9 to 1
# (3^20), and four to converge.
STEPS = 24
HALVINGS = 4  # how often a step that increases the distance is halved
FARTHEST = 8.0  # largest factor by which one step may change a parameter's distance to its least sensible value
GAIN = 1 / 64  # while fits are compared, a step that reduces the squares by a smaller share is the last
# A fit ends once a step gains less than `GAIN` and leaves an RMS of more than this multiple of the limit: if later steps gain no
# more, `STEPS` of them divide the RMS by at most (1 − 1/64)^(-STEPS/2) = 1.21. After a limited step they may gain more.
FAR = (1.0 - GAIN) ** (-STEPS / 2.0)
SETTLED = 1e-3  # in standard deviations; a shorter step changes no digit that is reported


def right_value(placement: FaultPlacement, right: Segment) -> float:
    """Return the correct value of a placement's parameter, from the checkpoint."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.right(right.steps[placement.places[0]])


def wrong_value(placement: FaultPlacement, right: Segment) -> float:
    """Return the usual faulty value of a placement's parameter."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.wrong(right.steps[placement.places[0]])


def started(problem: Problem[Any], placement: FaultPlacement, others: Sequence[FaultPlacement] = ()) -> FittedFaults | None:
    """Return a fault with a first estimate of its parameter: the usual value, or one Gauss–Newton step from the correct one.

    The value with the smaller distance is chosen; if both increase the distance, the step is halved until it does not. Return None
    if no value changes anything.
    """
    right, wrong = right_value(placement, problem.right), wrong_value(placement, problem.right)
    fits: list[FittedFaults | None] = [problem.evaluate([*others, placement.of(wrong)])]
    moved = problem.evaluate([*others, placement.of(right + NUDGE * abs(wrong - right))])
    if moved is not None:
        at_right = [*others, placement.of(right)]  # Some mistakes are wrong with the correct number, too.
        base, nudged = problem.value(at_right), problem.value(moved.placements)
        squares = problem.squares(others)
        pooling_index, before = int(squares.argmin()), float(squares.min())
        weights = problem.weights[pooling_index]
        slope = (nudged - base)[pooling_index] / (NUDGE * abs(wrong - right)) * weights
        residual = problem.residual(at_right)[pooling_index] * weights
        energy = float((slope**2).sum())
        if energy > 0.0 and math.isfinite(energy):
            value = _within(placement.fault.parameter, right, float((slope * residual).sum()) / energy, abs(wrong - right))
            fits += _farther(problem, placement, others, value, _farthest(placement.fault.parameter, right, abs(wrong - right)))
            for halving in range(1, HALVINGS + 1):
                if any(f is not None and f.squares[pooling_index] < before for f in fits):
                    break
                fits.append(problem.evaluate([*others, placement.of(right + (value - right) / 2.0**halving)]))
    return min((f for f in fits if f is not None), key=lambda f: f.distance, default=None)


def _farther(
    problem: Problem[Any], placement: FaultPlacement, others: Sequence[FaultPlacement], value: float, end: float
) -> Iterator[FittedFaults]:
    """Yield the fit at a value; if the value is limited by `_farthest`, go on in ever longer steps while the distance decreases."""
    parameter, nearest = placement.fault.parameter, math.inf
    assert parameter is not None
    fit = problem.evaluate([*others, placement.of(value)])
    while fit is not None and fit.distance < (1.0 - GAIN) * nearest:
        yield fit
        nearest = fit.distance
        if value < end:
            return
        value = end = parameter.least + (value - parameter.least) * FARTHEST
        if not math.isfinite(value):
            return
        fit = problem.evaluate([*others, placement.of(value)])


def _within(parameter: Parameter | None, value: float, step: float, scale: float) -> float:
    """Return the value one step on, limited to sensible values and to a change by the factor `FARTHEST`."""
    assert parameter is not None
    distance = value - parameter.least
    nearest = parameter.least + max(distance, 0.0) / FARTHEST
    return min(max(value + step, nearest), _farthest(parameter, value, scale))


def _farthest(parameter: Parameter | None, value: float, scale: float) -> float:
    """Return the largest value to which one step may lead."""
    assert parameter is not None
    return parameter.least + max(value - parameter.least, scale) * FARTHEST


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
        now = np.array([_range(fit.placements[i], problem.right) for i in free])
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
        after = np.array([_range(fit.placements[i], problem.right) for i in free])
        is_last = gain < (max(least, GAIN) if is_far else least) and not _has_changed(after, now, FARTHEST / 2.0)
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


def _range(placement: FaultPlacement, right: Segment) -> float:
    """Return the distance of a parameter to its least sensible value."""
    assert placement.fault.parameter is not None
    return _value(placement, right) - placement.fault.parameter.least


def _has_changed(now: Array, before: Array, factor: float = 2.0) -> bool:
    """Return whether a distance to the least sensible value has changed by more than a factor."""
    return bool(((now > factor * before) | (now < before / factor)).any())


def _squares(problem: Problem[Any], fit: FittedFaults, weights: Array) -> float:
    """Return Σ r² w² under the set's pooling; infinite if the segment yields a non-finite number."""
    with np.errstate(all="ignore"):
        found = float(np.square(problem.residual(fit.placements)[fit.pooling_index] * weights).sum())
    return found if math.isfinite(found) else math.inf


def _stepped(problem: Problem[Any], fit: FittedFaults, free: Sequence[int], step: Array, weights: Array) -> FittedFaults | None:
    """Return the fit one step on; the step is halved while it increases the distance. Return None if it does at every length."""
    before = _squares(problem, fit, weights)
    for halving in range(HALVINGS + 1):
        moved = list(fit.placements)
        for index, change in zip(free, step / 2.0**halving, strict=True):
            placement = moved[index]
            scale = abs(wrong_value(placement, problem.right) - right_value(placement, problem.right))
            moved[index] = placement.of(_within(placement.fault.parameter, _value(placement, problem.right), float(change), scale))
        nearer = problem.evaluate(moved)
        if nearer is not None and _squares(problem, nearer, weights) < before:
            return replace(nearer, allowed=fit.allowed)
    return None


def _value(placement: FaultPlacement, right: Segment) -> float:
    return wrong_value(placement, right) if placement.value is None else placement.value


def _slopes(problem: Problem[Any], fit: FittedFaults) -> tuple[Array, list[int]]:
    """Return the derivatives of the printed numbers by the K free parameters, (K, N), and the indices of their placements."""
    found, free = [], []
    for index, placement in enumerate(fit.placements):
        if placement.fault.parameter is None:
            continue
        value = _value(placement, problem.right)
        nudge = NUDGE * max(abs(value), abs(wrong_value(placement, problem.right) - right_value(placement, problem.right)))
        moved = problem.value([*fit.placements[:index], placement.of(value + nudge), *fit.placements[index + 1 :]])
        slope = (moved - problem.value(fit.placements))[fit.pooling_index] / nudge
        if slope.any():
            found.append(slope)
            free.append(index)
    return (np.array(found) if found else np.zeros((0, problem.weights.shape[1]))), free


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
    found: list[Estimate | None] = []
    gains = np.linalg.pinv(slopes * weights).T * weights if free else slopes
    for index, placement in enumerate(fit.placements):
        if placement.fault.parameter is None:
            found.append(None)
            continue
        deviation, bound = math.inf, 0.0
        if index in free:
            variance, bound = projected(gains[free.index(index)])
            # Deterministic errors are taken as uniform within their bound.
            deviation = math.hypot(math.sqrt(variance), bound / math.sqrt(3.0))
        parameter, value = placement.fault.parameter, _value(placement, problem.right)
        right, wrong = right_value(placement, problem.right), wrong_value(placement, problem.right)
        form = closed_form(parameter, value, deviation, problem.right.network.architecture)
        found.append(Estimate(parameter.name, right, wrong, value, deviation, bound, form))
    return tuple(found)
