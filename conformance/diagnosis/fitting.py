"""Estimates of fault parameters by weighted least squares on the outputs, all parameters of a set together (Gauss–Newton)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import local

import numpy as np

from conformance.diagnosis.placements import FaultPlacement, Forward
from conformance.faults import Parameter
from conformance.judge.evidence import Estimate
from conformance.judge.filters import NUDGE
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array

STEPS = 12  # largest number of Gauss–Newton steps; convergence is quadratic near the solution
HALVINGS = 4  # how often a step that increases the distance is halved
FARTHEST = 8.0  # largest factor by which one step may change a parameter's distance to its least sensible value
GAIN = 1 / 64  # while fits are compared, a step that reduces the squares by a smaller share is the last
# Effects up to this share of the numbers' size are taken as linear: their second order is a quarter of them, which is also the
# relative error of the estimate by `screening.PROBES` probes.
LINEAR = 1 / 4
KEPT = 3  # number of networks that each thread holds
SETTLED = 1e-3  # in standard deviations; a shorter step changes no digit that is reported


@dataclass(frozen=True, eq=False)
class Fit:
    """Faults with their parameters, and the distance of the network that has them.

    Attributes:
        placements: the faults.
        squares: Σ r²/σ² under each pooling, (P,).
    """

    placements: tuple[FaultPlacement, ...]
    squares: Array

    @property
    def pooling_index(self) -> int:
        """The index of the pooling with the smallest distance."""
        return int(self.squares.argmin())

    @property
    def distance(self) -> float:
        """The smallest Σ r²/σ² over the poolings."""
        return float(self.squares.min())


class Problem:
    """The printed numbers, and the correct network's sigma, with which all faulty networks are compared."""

    def __init__(self, right: Forward, sigma: Array) -> None:
        """Bind the correct network to its sigma, (P, N)."""
        self.right, self.sigma = right, sigma
        self.actual = right.network.reading.actual
        self._last = local()

    def forward(self, placements: Sequence[FaultPlacement]) -> Forward | None:
        """Return the network with these faults; None if they change nothing. Each thread keeps its last `KEPT` networks."""
        key = tuple(placements)
        last: dict[tuple[FaultPlacement, ...], Forward | None] = self._last.__dict__.setdefault("forwards", {})
        if key not in last:
            like = last.pop(key[:-1], None)
            if like is not None:
                last[key[:-1]] = like  # moved to the end, since the first one is deleted first
            found = self.right.with_(key, like) if key else self.right
            while len(last) >= KEPT:
                del last[next(iter(last))]
            last[key] = found
        return last[key]

    def value(self, placements: Sequence[FaultPlacement]) -> Array:
        """Return the numbers printed by the network with these faults, (P, N).

        If the faults change nothing, the numbers are those of the correct network.
        """
        return (self.forward(placements) or self.right).value

    def squares(self, forward: Forward) -> Array:
        """Return Σ r²/σ² under each pooling, (P,); infinite if the network yields a non-finite number."""
        with np.errstate(all="ignore"):
            found = (((self.actual - forward.value) / self.sigma) ** 2).sum(1)
        return np.where(np.isfinite(found), found, np.inf)

    @property
    def is_linear(self) -> bool:
        """Whether effects of faults add up: under some pooling the residual is at most the share `LINEAR` of the numbers."""
        left = ((self.actual - self.right.value) ** 2).sum(1).min()
        return bool(left <= LINEAR**2 * (self.actual**2).sum())

    def tried(self, placements: Sequence[FaultPlacement]) -> Fit | None:
        """Return the fit of the network with these faults; None if they change nothing."""
        forward = self.forward(placements)
        return None if forward is None else Fit(tuple(placements), self.squares(forward))


def right_value(placement: FaultPlacement, forward: Forward) -> float:
    """Return the correct value of a placement's parameter, from the checkpoint."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.right(forward.steps[placement.places[0]])


def wrong_value(placement: FaultPlacement, forward: Forward) -> float:
    """Return the usual faulty value of a placement's parameter."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.wrong(forward.steps[placement.places[0]])


def started(problem: Problem, placement: FaultPlacement, others: Sequence[FaultPlacement] = ()) -> Fit | None:
    """Return a fault with a first estimate of its parameter: the usual value, or one Gauss–Newton step from the correct one.

    The value with the smaller distance is chosen. Return None if neither value changes anything.

    Args:
        problem: the numbers.
        placement: the fault with a parameter.
        others: the faults that are already in place.
    """
    right, wrong = right_value(placement, problem.right), wrong_value(placement, problem.right)
    fits: list[Fit | None] = [problem.tried([*others, placement.of(wrong)])]
    moved = problem.tried([*others, placement.of(right + NUDGE * abs(wrong - right))])
    if moved is not None:
        base, nudged = problem.value(others), problem.value(moved.placements)
        pooling_index = int(problem.squares(problem.forward(others) or problem.right).argmin())
        slope = (nudged - base)[pooling_index] / (NUDGE * abs(wrong - right)) / problem.sigma[pooling_index]
        residual = (problem.actual - base[pooling_index]) / problem.sigma[pooling_index]
        energy = float((slope**2).sum())
        if energy > 0.0 and math.isfinite(energy):
            value = _within(placement.fault.parameter, right, float((slope * residual).sum()) / energy, abs(wrong - right))
            fits += _farther(problem, placement, others, value, _farthest(placement.fault.parameter, right, abs(wrong - right)))
    return min((f for f in fits if f is not None), key=lambda f: f.distance, default=None)


def _farther(
    problem: Problem, placement: FaultPlacement, others: Sequence[FaultPlacement], value: float, end: float
) -> Iterator[Fit]:
    """Yield the fit at a value; if the value is limited by `_farthest`, go on in ever longer steps while the distance decreases."""
    parameter, nearest = placement.fault.parameter, math.inf
    assert parameter is not None
    fit = problem.tried([*others, placement.of(value)])
    while fit is not None and fit.distance < (1.0 - GAIN) * nearest:
        yield fit
        nearest = fit.distance
        if value < end:
            return
        value = end = parameter.least + (value - parameter.least) * FARTHEST
        fit = problem.tried([*others, placement.of(value)])


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


def fitted(problem: Problem, start: Fit, least: float = 0.0) -> Fit:
    """Improve all parameters of a set together until they converge, or a step reduces the squares by a share below `least`."""
    fit = start
    for _ in range(STEPS):
        slopes, free = _slopes(problem, fit)
        if not free:
            return fit
        matrix = slopes / problem.sigma[fit.pooling_index]
        residual = (problem.actual - problem.value(fit.placements)[fit.pooling_index]) / problem.sigma[fit.pooling_index]
        if not np.isfinite(matrix).all():
            return fit
        step = np.linalg.lstsq(matrix.T, residual, rcond=None)[0]
        better = _stepped(problem, fit, free, step)
        if better is None:
            return fit
        energies = np.sqrt((matrix**2).sum(1))
        gain, fit = 1.0 - better.distance / fit.distance, better
        if gain < least or (np.abs(step) * energies <= SETTLED).all():
            return fit
    return fit


def _stepped(problem: Problem, fit: Fit, free: Sequence[int], step: Array) -> Fit | None:
    """Return the fit one step on; the step is halved while it increases the distance. Return None if it does at every length."""
    for halving in range(HALVINGS + 1):
        moved = list(fit.placements)
        for index, change in zip(free, step / 2.0**halving, strict=True):
            placement = moved[index]
            scale = abs(wrong_value(placement, problem.right) - right_value(placement, problem.right))
            moved[index] = placement.of(_within(placement.fault.parameter, _value(placement, problem.right), float(change), scale))
        tried = problem.tried(moved)
        if tried is not None and tried.squares[fit.pooling_index] < fit.squares[fit.pooling_index]:
            return tried
    return None


def _value(placement: FaultPlacement, forward: Forward) -> float:
    return wrong_value(placement, forward) if placement.value is None else placement.value


def _slopes(problem: Problem, fit: Fit) -> tuple[Array, list[int]]:
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
    return (np.array(found) if found else np.zeros((0, len(problem.actual)))), free


def estimates(problem: Problem, fit: Fit, hypothesis: Hypothesis) -> tuple[Estimate | None, ...]:
    """Return the estimate of each fault's parameter; None for a fault without a parameter.

    With J the slopes and W = 1/σ², noise n changes the estimates by (J W Jᵀ)⁻¹ J W n; each row is a direction to project on. The
    deviations therefore include all correlations of the correct network's noise.
    """
    slopes, free = _slopes(problem, fit)
    found: list[Estimate | None] = []
    pooling_index, sigma = fit.pooling_index, problem.sigma[fit.pooling_index]
    gains = np.linalg.pinv(slopes / sigma).T / sigma if free else slopes
    for index, placement in enumerate(fit.placements):
        if placement.fault.parameter is None:
            found.append(None)
            continue
        deviation = math.inf
        if index in free:
            direction = np.zeros_like(problem.sigma)
            direction[pooling_index] = gains[free.index(index)]
            deviation = math.sqrt(problem.right.projected(direction, hypothesis)[0])
        right, wrong = right_value(placement, problem.right), wrong_value(placement, problem.right)
        found.append(Estimate(placement.fault.parameter.name, right, wrong, _value(placement, problem.right), deviation))
    return tuple(found)
