"""Matched filters: a fault is looked for along the direction in which it moves a result.

With r the local residual, d the fault's direction (faulty minus right result, on the candidate's own parents), σ the sigma of
each element, b the bound on its deterministic error, and <x,y> = Σ x y / (σ² + b²):

    amplitude a = <r,d> / <d,d>,        z = <r,d> / sd(<n,d>)

where the standard deviation of the noise's own projection counts every correlation (`Noise.projected`), and what
deterministic errors can add at most is taken off |<r,d>| first. (Turin 1960, *An introduction to matched filters*.)

A fault without a parameter is detected when z passes its threshold, as it would if the fault were there, and the residual is
nearer to the fault than to none, |r − d| < |r|, so a > 1/2. One that is a number got wrong is detected by z alone, of either sign,
and the number is estimated by weighted least squares, which is the matched filter of the result's derivative by that number.

A fault that moves a single element beyond twice the largest error that a correct candidate may have needs no filter to be seen:
the largest error sees it. Its filter is left out, and its expected z is that element's, which the filter's cannot be below.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.faults import Parameter
from conformance.judge.directions import Direction
from conformance.judge.evidence import Estimate, Filtered
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.judge.statistics import SEPARABLE_Z
from conformance.numerics.formats import Array

NEWTON_STEPS = 24  # quadratic once near; from afar a step triples what stands under a root: 3^20 from 1e-9 to 1, four to converge
NUDGE = 2.0**-26  # relative: √u of float64, where the errors of rounding and of linearising a difference are alike

NoiseOf = Callable[[Segment], Noise]


@dataclass(frozen=True)
class Projection:
    """A residual along a direction; `deviation` and `bound` are those of the amplitude."""

    amplitude: float
    z: float
    expected_z: float
    deviation: float
    bound: float

    @property
    def spread(self) -> float:
        """The amplitude's deviation with what deterministic errors may add, taken as uniform within their bound."""
        return math.hypot(self.deviation, self.bound / math.sqrt(3.0))


def project(residual: Array, moved: Array, noise: Noise) -> Projection | None:
    """The residual along a direction; None where that is nothing that is judged."""
    weighted = noise.precision * moved
    energy = float(np.vdot(weighted, moved))
    if energy == 0.0 or not np.isfinite(energy):
        return None
    variance, bound = noise.projected(weighted)
    deviation = math.sqrt(variance)
    projection = float(np.vdot(weighted, residual))
    z = float(np.sign(projection)) * max(abs(projection) - bound, 0.0) / deviation
    return Projection(projection / energy, z, max(energy - bound, 0.0) / deviation, deviation / energy, bound / energy)


def expected(direction: Direction, noise: Noise, largest: float) -> float:
    """What z would be if the fault were there, or, where it is gross, a lower bound on it; `largest` is the limit of an error."""
    gross = _gross(direction.changed, noise, largest)
    if gross is not None:
        return gross
    found = project(direction.changed, direction.changed, noise)
    return found.expected_z if found else 0.0


def _gross(moved: Array, noise: Noise, largest: float) -> float | None:
    """The largest element of a direction in sigma, where that is beyond doubt."""
    size = float(((np.abs(moved) - noise.bound) / noise.sigma).max(initial=0.0, where=noise.judged))
    return size if size >= max(2.0 * largest, SEPARABLE_Z) else None


def matched(direction: Direction, made: Array, noise: Noise, threshold: float, largest: float) -> Filtered | None:
    """One fault's filter on what the candidate made; None where the fault moves nothing that is judged."""
    fault, right = direction.fault, direction.base.value
    gross = _gross(direction.changed, noise, largest) if direction.parameter is None else None
    if gross is not None:
        return Filtered(fault.name, direction.step, 0.0, 0.0, gross)
    found = project(made - right, direction.changed, noise)
    if found is None:
        return None
    seen, parameter = Filtered(fault.name, direction.step, found.amplitude, found.z, found.expected_z), direction.parameter
    if parameter is None:
        return seen.as_detected(min(found.z, found.expected_z) > threshold and found.amplitude > 0.5)
    return seen.as_detected(abs(found.z) > threshold, _as_right(direction, parameter, found))


def _as_right(direction: Direction, parameter: Parameter, found: Projection) -> Estimate:
    """The right value, and how well the residual determines it."""
    step = direction.base.steps[direction.step]
    right, wrong = parameter.right(step), parameter.wrong(step)
    return Estimate(parameter.name, right, wrong, right, found.spread * abs(wrong - right), found.bound * abs(wrong - right))


def estimated(direction: Direction, made: Array, noise: Noise, noise_of: NoiseOf, threshold: float) -> Estimate | None:
    """A parameter's value where the residual is no noise along the fault's direction; else the right one and its deviation."""
    parameter, moved = direction.parameter, direction.moved
    if parameter is None or moved is None:
        return None
    found = project(made - direction.base.value, moved, noise)
    step = direction.base.steps[direction.step]
    right, wrong = parameter.right(step), parameter.wrong(step)
    if found is None:
        return None
    if abs(found.z) <= threshold:
        return _as_right(direction, parameter, found)
    start = right + found.amplitude * (wrong - right)
    return fitted(direction, parameter, made, noise_of, start)


def fitted(direction: Direction, parameter: Parameter, made: Array, noise_of: NoiseOf, start: float) -> Estimate:
    """The parameter by weighted least squares, Gauss–Newton from `start`, under the noise of a value within a factor of two."""
    step = direction.base.steps[direction.step]
    right, wrong, deviation, bound = parameter.right(step), parameter.wrong(step), math.inf, 0.0
    value = start if start > parameter.least else wrong
    noise, noise_at = None, math.inf
    for _ in range(NEWTON_STEPS):
        nudge = NUDGE * max(abs(value), abs(wrong - right))  # a tiny value's own part of it would be lost in rounding
        segment, nudged = direction.struck(value), direction.struck(value + nudge)
        assert segment is not None
        assert nudged is not None
        # Ratios of distances to the least value, which the noise may depend on.
        if noise is None or not 0.5 <= (value - parameter.least) / (noise_at - parameter.least) <= 2.0:
            noise, noise_at = noise_of(segment), value
        found = project(made - segment.value, (nudged.value - segment.value) / nudge, noise)
        if found is None:
            break
        deviation, bound = found.spread, found.bound
        # A step may not leave the sensible values, nor change the distance to their end more than eightfold.
        distance = value - parameter.least
        further = parameter.least + min(max(distance + found.amplitude, distance / 8.0), distance * 8.0)
        if further <= parameter.least:  # it leads away from all that is sensible
            break
        value = further
        if abs(found.amplitude) <= found.deviation / 10.0:
            break
    return Estimate(parameter.name, right, wrong, value, deviation, bound)
