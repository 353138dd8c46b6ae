"""The numbers that faults got wrong, by weighted least squares on the outputs, all of a set together (Gauss–Newton)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import local

import numpy as np

from conformance.diagnosis.hypotheses import FaultPlacement, Forward
from conformance.faults import Parameter
from conformance.judge.evidence import Estimate
from conformance.judge.filters import NUDGE
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array

STEPS = 12  # quadratic once near
HALVINGS = 4  # of a step that leads away
FARTHEST = 8.0  # times: how far one step may change a number's distance to the least that makes sense
GAIN = 1 / 64  # of the squares: while fits are compared, a step that takes less off them is the last
LINEAR = 1 / 4  # of the numbers' own size: of effects so large the second order is a quarter, as much as `PROBES` leave open
KEPT = 3  # networks that are held at once
SETTLED = 1e-3  # of a standard deviation: a step that is shorter changes no digit that is reported


@dataclass(frozen=True, eq=False)
class Fit:
    """Faults with their numbers, and the weighted squares that the network with them leaves under each pooling, (P,)."""

    placements: tuple[FaultPlacement, ...]
    squares: Array

    @property
    def pooling_index(self) -> int:
        """The pooling that leaves least."""
        return int(self.squares.argmin())

    @property
    def distance(self) -> float:
        """What it leaves."""
        return float(self.squares.min())


class Problem:
    """The numbers that were printed, and the right network's sigma, by which all faulty ones are compared."""

    def __init__(self, right: Forward, sigma: Array) -> None:
        """`sigma` is (P, N)."""
        self.right, self.sigma = right, sigma
        self.actual = right.network.reading.actual
        self._last = local()

    def forward(self, placements: Sequence[FaultPlacement]) -> Forward | None:
        """The network with these faults, None where they change nothing; each thread keeps its last few: they are large."""
        key = tuple(placements)
        last: dict[tuple[FaultPlacement, ...], Forward | None] = self._last.__dict__.setdefault("forwards", {})
        if key not in last:
            like = last.pop(key[:-1], None)
            if like is not None:
                last[key[:-1]] = like  # what was used last is kept longest
            found = self.right.with_(key, like) if key else self.right
            while len(last) >= KEPT:
                del last[next(iter(last))]
            last[key] = found
        return last[key]

    def value(self, placements: Sequence[FaultPlacement]) -> Array:
        """(P, N): what the network with these faults prints; the right one's where they change nothing."""
        return (self.forward(placements) or self.right).value

    def squares(self, forward: Forward) -> Array:
        """(P,): Σ r²/σ² under each pooling; infinite where the network gives no number."""
        with np.errstate(all="ignore"):
            found = (((self.actual - forward.value) / self.sigma) ** 2).sum(1)
        return np.where(np.isfinite(found), found, np.inf)

    @property
    def is_linear(self) -> bool:
        """Whether the right network is so near under some pooling that effects of faults add up, as well as `LINEAR` says."""
        left = ((self.actual - self.right.value) ** 2).sum(1).min()
        return bool(left <= LINEAR**2 * (self.actual**2).sum())

    def tried(self, placements: Sequence[FaultPlacement]) -> Fit | None:
        """The network with these faults; None where they change nothing."""
        forward = self.forward(placements)
        return None if forward is None else Fit(tuple(placements), self.squares(forward))


def right_value(placement: FaultPlacement, forward: Forward) -> float:
    """The checkpoint's."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.right(forward.steps[placement.places[0]])


def wrong_value(placement: FaultPlacement, forward: Forward) -> float:
    """The fault's usual one."""
    assert placement.fault.parameter is not None
    return placement.fault.parameter.wrong(forward.steps[placement.places[0]])


def started(problem: Problem, placement: FaultPlacement, others: Sequence[FaultPlacement] = ()) -> Fit | None:
    """A fault with a number, from its usual value or one step from the right one, whichever leaves less."""
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
    """From a value on; where one step could not go far enough, in ever longer ones while they lead nearer."""
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
    """The value a step on, which may not leave the sensible values nor go too far at once."""
    assert parameter is not None
    distance = value - parameter.least
    nearest = parameter.least + max(distance, 0.0) / FARTHEST
    return min(max(value + step, nearest), _farthest(parameter, value, scale))


def _farthest(parameter: Parameter | None, value: float, scale: float) -> float:
    """The largest value that one step may lead to."""
    assert parameter is not None
    return parameter.least + max(value - parameter.least, scale) * FARTHEST


def fitted(problem: Problem, start: Fit, least: float = 0.0) -> Fit:
    """All numbers of a set improved together until they settle, or a step takes less than the share `least` off the squares."""
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
    """The fit a step on, the step halved while it leads away; None where every length does."""
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
    """(K, N): how the numbers printed move with each of the K free numbers; and which placements those belong to."""
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
    """Each fault's number with its deviation, every correlation of the right network's noise counted.

    With J the slopes and W = 1/σ² the estimates move by (J W Jᵀ)⁻¹ J W n for noise n: each row is a direction to project on.
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
