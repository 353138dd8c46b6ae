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
from conformance.judge.evidence import Estimate, FilterResult
from conformance.judge.fault_directions import Direction
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.judge.statistics import SEPARABLE_Z
from conformance.numerics.formats import Array

NEWTON_STEPS = 24  # quadratic once near; from afar a step triples what stands under a root: 3^20 from 1e-9 to 1, four to converge
GROSS = 2.0  # times the limit of the largest error: what is beyond that needs no filter to be seen
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


@dataclass(frozen=True)
class Sums:
    """What a projection is made of: <d,d>, <r,d>, the variance of <n,d>, the most that bounds add to it; each a sum over blocks."""

    energy: float = 0.0
    along: float = 0.0
    variance: float = 0.0
    bound: float = 0.0

    @classmethod
    def of(cls, residual: Array, moved: Array, noise: Noise) -> "Sums":
        """Those of a residual along a direction."""
        weighted = noise.precision * moved
        energy = float(np.vdot(weighted, moved))
        if energy == 0.0:
            return cls()
        return cls(energy, float(np.vdot(weighted, residual)), *noise.projected(weighted))

    def __add__(self, other: "Sums") -> "Sums":
        """Those over both blocks."""
        energy, along = self.energy + other.energy, self.along + other.along
        return Sums(energy, along, self.variance + other.variance, self.bound + other.bound)

    @property
    def projection(self) -> Projection | None:
        """The residual along the direction; None where that is nothing that is judged."""
        energy, bound = self.energy, self.bound
        if energy == 0.0 or not np.isfinite(energy):
            return None
        deviation = math.sqrt(self.variance)
        z = float(np.sign(self.along)) * max(abs(self.along) - bound, 0.0) / deviation
        return Projection(self.along / energy, z, max(energy - bound, 0.0) / deviation, deviation / energy, bound / energy)


def project(residual: Array, moved: Array, noise: Noise) -> Projection | None:
    """The residual along a direction; None where that is nothing that is judged."""
    return Sums.of(residual, moved, noise).projection


def expected(direction: Direction, noise: Noise, largest: float) -> float:
    """What z would be if the fault were there, or, where it is gross, a lower bound on it; `largest` is the limit of an error."""
    size = largest_element(direction.changed, noise)
    if is_gross(size, largest):
        return size
    found = project(direction.changed, direction.changed, noise)
    return found.expected_z if found else 0.0


def largest_element(moved: Array, noise: Noise) -> float:
    """Of a direction, in sigma, once the bound is taken off."""
    size = np.asarray(np.abs(moved))
    if np.any(noise.bound):
        size -= noise.bound
    size /= noise.sigma
    return float(size.max(initial=0.0) if noise.all_judged else size.max(initial=0.0, where=noise.judged))


def is_gross(size: float, largest: float) -> bool:
    """Whether a direction whose largest element is `size` is seen beyond doubt without a filter."""
    return size >= max(GROSS * largest, SEPARABLE_Z)


def matched(direction: Direction, actual: Array, noise: Noise, threshold: float, largest: float) -> FilterResult | None:
    """One fault's filter on the candidate's array; None where the fault moves nothing that is judged."""
    if direction.parameter is None and is_gross(size := largest_element(direction.changed, noise), largest):
        return without_filter(direction, size)
    found = project(actual - direction.base.value, direction.changed, noise)
    return None if found is None else with_filter(direction, found, threshold)


def without_filter(direction: Direction, size: float) -> FilterResult:
    """What is said of a gross fault: the largest error does not see it."""
    return FilterResult(direction.fault.name, direction.step, 0.0, 0.0, size)


def with_filter(direction: Direction, found: Projection, threshold: float) -> FilterResult:
    """What the filter concludes."""
    seen = FilterResult(direction.fault.name, direction.step, found.amplitude, found.z, found.expected_z)
    parameter = direction.parameter
    if parameter is None:
        return seen.as_detected(min(found.z, found.expected_z) > threshold and found.amplitude > 0.5)
    return seen.as_detected(abs(found.z) > threshold, _as_right(direction, parameter, found))


def _as_right(direction: Direction, parameter: Parameter, found: Projection) -> Estimate:
    """The right value, and how well the residual determines it."""
    step = direction.base.steps[direction.step]
    right, wrong = parameter.right(step), parameter.wrong(step)
    return Estimate(parameter.name, right, wrong, right, found.spread * abs(wrong - right), found.bound * abs(wrong - right))


def started(direction: Direction, actual: Array, noise: Noise) -> Estimate | None:
    """A parameter of its usual value, or, if that is nearer, of the value to which that of the right and the usual one leads.

    Its deviation is not known.
    """
    parameter, usual = direction.parameter, direction.usual
    if parameter is None or usual is None:
        return None
    step, residual = direction.base.steps[direction.step], actual - direction.base.value
    right, wrong = parameter.right(step), parameter.wrong(step)
    value = right + _least_squares(residual, direction.changed, noise)[0] * (wrong - right)
    other = direction.applied(value) if value > parameter.least else None

    def left(segment: Segment) -> float:
        residual = actual - segment.value
        return float(np.vdot(noise.precision * residual, residual))

    is_usual = other is None or not left(other) < left(usual)
    return Estimate(parameter.name, right, wrong, wrong if is_usual else value, math.inf)


def fitted(direction: Direction, parameter: Parameter, actual: Array, noise_of: NoiseOf, start: float) -> Estimate:
    """The parameter by weighted least squares, Gauss–Newton from `start`, under the noise of a value within a factor of two.

    A value's noise costs many times what a step does, so it is asked for where the step is small: on the way there the noise of
    `start` gives the weights.
    """
    step = direction.base.steps[direction.step]
    right, wrong, deviation, bound = parameter.right(step), parameter.wrong(step), math.inf, 0.0
    value = start if start > parameter.least else wrong
    before = math.inf
    noise, noise_at = None, math.inf
    for _ in range(NEWTON_STEPS):
        nudge = NUDGE * max(abs(value), abs(wrong - right))  # a tiny value's own part of it would be lost in rounding
        segment, nudged = direction.applied(value), direction.applied(value + nudge)
        assert segment is not None
        assert nudged is not None
        residual, slope = actual - segment.value, (nudged.value - segment.value) / nudge
        # Distances to the least value, on whose ratios the noise may depend.
        distance = value - parameter.least
        if noise is None:
            noise, noise_at = noise_of(segment), distance
        amplitude, independent = _least_squares(residual, slope, noise)
        negligible = 0.0
        # Beyond the end of the sensible values the step stays as it is, however small the distance becomes.
        if abs(amplitude) <= max(distance / 2.0, independent) or abs(amplitude - before) <= abs(amplitude) / 2.0:
            if not 0.5 <= distance / noise_at <= 2.0:
                noise, noise_at = noise_of(segment), distance
            found = project(residual, slope, noise)
            if found is None:
                break
            amplitude, deviation, bound = found.amplitude, found.spread, found.bound
            negligible = found.deviation / 10.0
        before = amplitude
        # A step may not leave the sensible values, nor change the distance to their end more than eightfold.
        further = parameter.least + min(max(distance + amplitude, distance / 8.0), distance * 8.0)
        if further <= parameter.least:  # it leads away from all that is sensible
            break
        towards_end = value - further
        value = further
        if abs(amplitude) <= negligible or 0.0 < towards_end <= negligible:  # towards the end each step is shorter than the last
            break
    return Estimate(parameter.name, right, wrong, value, deviation, bound)


def _least_squares(residual: Array, slope: Array, noise: Noise) -> tuple[float, float]:
    """The amplitude <r,d>/<d,d>, and its deviation 1/√<d,d> where errors are independent; 0 and ∞ where nothing judged moves."""
    weighted = noise.precision * slope
    energy = float(np.vdot(weighted, slope))
    return (float(np.vdot(weighted, residual)) / energy, energy**-0.5) if 0.0 < energy < math.inf else (0.0, math.inf)
