"""Matched filters: a fault is looked for along the direction in which it moves a result.

With r the local residual, d the fault's direction (faulty minus right result, on the candidate's own parents), σ the sigma of
each element, b the bound on its deterministic error, and <x,y> = Σ x y / (σ² + b²):

    amplitude a = <r,d> / <d,d>,        z = <r,d> / sd(<n,d>)

where the standard deviation of the noise's own projection counts every correlation (`Noise.projected`), and what
deterministic errors can add at most is taken off |<r,d>| first. (Turin 1960, *An introduction to matched filters*.)

A fault without a parameter is detected when z passes its threshold, as it would if the fault were there, and the residual is
nearer to the fault than to none, |r − d| < |r|, so a > 1/2. One that is a number got wrong is detected by z alone, of either sign,
and the number is estimated by weighted least squares, which is the matched filter of the result's derivative by that number.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults import CATALOGUE, Fault, Parameter
from conformance.judge.evidence import Estimate, Filtered
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array
from conformance.oracle import Network

NEWTON_STEPS = 12  # quadratic once near; from afar a step can change the value eightfold, 8^12 in all
SUSPECTS = 4  # of a whole network's faults, how many are followed up; each costs a few passes of the oracle
NUDGE = 2.0**-26  # relative: √u of float64, where the errors of rounding and of linearising a difference are alike


@dataclass(frozen=True)
class Direction:
    """A fault at a step, and how it moves the segment's result.

    `segment(None)` is the segment with the fault, `segment(value)` with that value of its parameter.
    """

    fault: Fault
    step: str
    moved: Array
    parameter: Parameter | None
    segment: Callable[[float | None], Segment]


def directions(network: Network, segment: Segment) -> Iterator[Direction]:
    """The faults that can strike a step of the segment in the activation's own layer."""
    layer = network.table[segment.name].layer
    for fault, name in _strikes(segment):
        if network.table[name].layer == layer:
            direction = _direction(fault, name, network, segment)
            if direction is not None:
                yield direction


def suspects(network: Network, segment: Segment, made: Array, noise: Noise) -> list[Direction]:
    """Of the faults in layers further back, the few that would account for the residual r to first order, likeliest first.

    With w = r/σ² a change e of a step moves <r, result> by Σ e · (Jᵀ w): one sweep back serves all faults. The fault that made r
    moves it by <r,r>. Only those that move it by half to twice that are followed up exactly.
    """
    layer, residual = network.table[segment.name].layer, made - segment.value
    weighted = np.where(noise.judged, residual / (noise.sigma**2 + np.square(noise.bound)), 0.0)
    energy, adjoints = float((weighted * residual).sum()), segment.adjoints(weighted)
    scores: list[tuple[float, Fault, str]] = []
    for fault, name in _strikes(segment):
        if network.table[name].layer != layer:
            faulty = fault.change(segment.steps[name], network)
            share = 0.0 if faulty is None else float((adjoints[name] * (faulty - segment.steps[name].value)).sum()) / energy
            if 0.5 <= share <= 2.0:
                scores.append((abs(math.log(share)), fault, name))
    likeliest = sorted(scores, key=lambda s: s[0])[:SUSPECTS]
    found = (_direction(fault, name, network, segment) for _, fault, name in likeliest)
    return [direction for direction in found if direction is not None]


def _strikes(segment: Segment) -> Iterator[tuple[Fault, str]]:
    for name, step in segment.steps.items():
        for fault in CATALOGUE:
            if fault.strikes(step.site.activation):
                yield fault, name


def _direction(fault: Fault, name: str, network: Network, segment: Segment) -> Direction | None:
    """None where the fault changes nothing there."""
    step = segment.steps[name]
    parameter = fault.parameter(step) if fault.parameter else None

    def struck(value: float | None) -> Segment:
        result = fault.change(step, network) if parameter is None or value is None else parameter.result(value)
        assert result is not None
        return segment.struck(name, result)

    faulty = fault.change(step, network)
    if faulty is None or np.array_equal(faulty, step.value):
        return None
    return Direction(fault, name, segment.struck(name, faulty).value - segment.value, parameter, struck)


@dataclass(frozen=True)
class _Projection:
    amplitude: float
    z: float
    expected_z: float
    deviation: float
    bound: float


def _project(residual: Array, moved: Array, noise: Noise) -> _Projection | None:
    weighted = np.where(noise.judged, moved / (noise.sigma**2 + np.square(noise.bound)), 0.0)
    energy = float((weighted * moved).sum())
    if energy == 0.0 or not np.isfinite(energy):
        return None
    variance, bound = noise.projected(weighted)
    deviation = math.sqrt(variance)
    projection = float((weighted * residual).sum())
    z = float(np.sign(projection)) * max(abs(projection) - bound, 0.0) / deviation
    return _Projection(projection / energy, z, max(energy - bound, 0.0) / deviation, deviation / energy, bound / energy)


def expected(direction: Direction, noise: Noise) -> float:
    """What z would be if the fault were there."""
    found = _project(direction.moved, direction.moved, noise)
    return found.expected_z if found else 0.0


@dataclass(frozen=True)
class Judging:
    """How a filter's finding is followed up.

    Attributes:
        threshold: of |z|.
        noise_of: the noise of a candidate that computes a segment, faulty or not.
        explains: whether a segment with a fault accounts for what the candidate made.
    """

    threshold: float
    noise_of: Callable[[Segment], Noise]
    explains: Callable[[Segment], bool]


def matched(direction: Direction, made: Array, right: Array, noise: Noise, judging: Judging) -> Filtered | None:
    """One fault's filter on what the candidate made; None where the fault does not move the result at all."""
    found = _project(made - right, direction.moved, noise)
    if found is None:
        return None
    threshold = judging.threshold
    room = threshold * found.deviation + found.bound
    filtered = Filtered(direction.fault.name, direction.step, found.amplitude, found.z, found.expected_z, room)
    if direction.parameter is None:
        detected = min(found.z, found.expected_z) > threshold and found.amplitude > 0.5
        return replace(filtered, detected=detected, explained=detected and judging.explains(direction.segment(None)))
    parameter = direction.parameter
    usual = abs(parameter.wrong - parameter.right)
    if abs(found.z) <= threshold:
        nothing = Estimate(parameter.name, parameter.right, parameter.wrong, parameter.right, found.deviation * usual)
        return replace(filtered, estimate=nothing)
    estimate = _estimated(direction, parameter, made, judging, found.amplitude)
    is_usual = abs(estimate.value - parameter.wrong) <= threshold * estimate.deviation
    explained = judging.explains(direction.segment(parameter.wrong if is_usual else estimate.value))
    return replace(filtered, detected=True, explained=explained, estimate=estimate)


def _estimated(direction: Direction, parameter: Parameter, made: Array, judging: Judging, amplitude: float) -> Estimate:
    """The parameter by weighted least squares, Gauss–Newton from where the filter points; each step under its own value's noise."""
    start = parameter.right + amplitude * (parameter.wrong - parameter.right)
    value = start if start > parameter.least else parameter.wrong
    deviation = math.inf
    for _ in range(NEWTON_STEPS):
        segment, nudge = direction.segment(value), NUDGE * value
        slope = (direction.segment(value + nudge).value - segment.value) / nudge
        found = _project(made - segment.value, slope, judging.noise_of(segment))
        if found is None:
            break
        deviation = found.deviation
        # A step may not leave the sensible values, nor change the distance to their end more than eightfold.
        distance = value - parameter.least
        value = parameter.least + min(max(distance + found.amplitude, distance / 8.0), distance * 8.0)
        if abs(found.amplitude) <= deviation / 10.0:
            break
    return Estimate(parameter.name, parameter.right, parameter.wrong, value, deviation)
