"""Matched filters, which look for a fault along the direction in which it changes a result.

With r the local residual, d the fault's direction (faulty minus correct result, on the candidate's own parents), σ the sigma of
each element, b the bound on its deterministic error, and <x,y> = Σ x y / (σ² + b²):

    amplitude a = <r,d> / <d,d>,        z = <r,d> / sd(<n,d>)

where the standard deviation of the noise's own projection includes every correlation (`Noise.projected`). The most that
deterministic errors can add is first subtracted from |<r,d>|, and so are the projections of the errors of rounding the correct
result (`Noise.stored`) and a residual sum (`Noise.summed`). (Turin 1960, *An introduction to matched filters*.)

A fault without a parameter is detected if z exceeds its threshold, the z expected with the fault present would exceed it as well,
and the residual is nearer to the fault than to none, |r − d| < |r|, so a > 1/2. A fault with a parameter is detected by z alone,
of either sign. It has a second filter, of small deviations of the parameter (`fault_effects.of_each_size`), because the effect need
not be proportional to the deviation: that of the usual one says nothing about smaller ones.

A fault of usual size is gross if it moves a single element by more than twice the largest error of a correct candidate. It needs
no filter to be detected, since the largest error shows it. Its filter is not evaluated, and its expected z is set to that element's
change in sigma. This is a lower bound on the filter's where elements are independent; errors of library functions that they share
can make the filter's smaller (`gelu-variant` on `tiny`: 8.0e5 and 1.8e5).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.judge.evidence import Confirmed, Estimate, FilterResult
from conformance.judge.fault_directions import Direction
from conformance.judge.judged_elements import zeroed
from conformance.judge.noise import Noise
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.thresholds import SEPARABLE_Z

GROSS = 2.0  # multiple of the limit of the largest error beyond which a fault needs no filter to be detected


@dataclass(frozen=True)
class Projection:
    """The projection of a residual on a direction.

    Attributes:
        amplitude: <r,d> / <d,d>.
        z: the projection in its standard deviations, after subtracting the deterministic bound.
        expected_z: z if the fault were present.
        deviation: standard deviation of the amplitude.
        bound: the most that deterministic errors can add to the amplitude.
    """

    amplitude: float
    z: float
    expected_z: float
    deviation: float
    bound: float

    @property
    def separable(self) -> float:
        """The smallest amplitude that would be separable."""
        return SEPARABLE_Z * self.deviation + self.bound

    def result(self, name: str, step: str, *, detected: bool, estimate: Estimate | None = None) -> FilterResult:
        """Return the filter result of a fault at a step."""
        return FilterResult(name, step, self.amplitude, self.z, self.expected_z, detected, estimate)


@dataclass(frozen=True)
class ProjectionSums:
    """The sums over blocks that determine a projection.

    Attributes:
        energy: <d,d>.
        along: <r,d>.
        variance: the variance of <n,d>.
        bound: the most that deterministic errors can add to <n,d>.
        stored: the projection of the errors of rounding the correct result to storage, by every call (`Noise.stored`).
        summed: the projection of the errors of rounding a residual sum to storage (`Noise.summed`).
    """

    energy: float = 0.0
    along: float = 0.0
    variance: float = 0.0
    bound: float = 0.0
    stored: float = 0.0
    summed: float = 0.0

    @classmethod
    def of(cls, residual: Array, effect: Array, noise: Noise) -> "ProjectionSums":
        """Return the sums for a residual and a direction; all are 0 if the direction moves no judged element."""
        weighted = noise.precision * effect
        energy = float(np.vdot(weighted, effect))
        if energy == 0.0:
            return cls()
        along, known = float(np.vdot(weighted, residual)), (noise.stored(weighted), noise.summed(weighted))
        return cls(energy, along, *noise.projected(weighted), *known)

    def __add__(self, other: "ProjectionSums") -> "ProjectionSums":
        """Return the sums over the elements of both operands."""
        energy, along = self.energy + other.energy, self.along + other.along
        variance, bound = self.variance + other.variance, self.bound + other.bound
        return ProjectionSums(energy, along, variance, bound, self.stored + other.stored, self.summed + other.summed)

    @property
    def projection(self) -> Projection | None:
        """The projection of the residual on the direction; None if the direction moves no judged element or is not finite."""
        energy, bound = self.energy, self.bound + abs(self.stored) + abs(self.summed)
        if energy == 0.0 or not np.isfinite(energy):
            return None
        deviation = math.sqrt(self.variance)
        z = float(np.sign(self.along)) * max(abs(self.along) - bound, 0.0) / deviation
        return Projection(self.along / energy, z, max(energy - bound, 0.0) / deviation, deviation / energy, bound / energy)


def project(residual: Array, effect: Array, noise: Noise) -> Projection | None:
    """Return the projection of a residual on a direction; None if the direction moves no judged element or is not finite."""
    return ProjectionSums.of(residual, effect, noise).projection


def expected_z(effect: Array, noise: Noise, largest: float) -> float:
    """Return the z that is expected of a fault with this effect, or its largest element in sigma if it is gross.

    The limit of the largest error of a correct candidate, in sigma, is `largest`.
    """
    size = largest_element(effect, noise)
    if is_gross(size, largest):
        return size
    found = project(effect, effect, noise)
    return found.expected_z if found else 0.0


def largest_element(effect: Array, noise: Noise) -> float:
    """Return the largest element of a direction, in sigma, after subtracting the deterministic bound; ∞ if one is not finite."""
    size = as_array(np.abs(effect))
    if noise.is_bounded:
        size -= noise.bound
    size /= noise.sigma
    largest = float(size.max(initial=0.0) if noise.all_judged else size.max(initial=0.0, where=noise.judged))
    return math.inf if math.isnan(largest) else largest  # a result that is not finite fails by itself


def is_gross(size: float, largest: float) -> bool:
    """Return whether a direction whose largest element is `size` is detected with certainty without a filter."""
    return size >= max(GROSS * largest, SEPARABLE_Z)


def gross_result(direction: Direction, size: float) -> FilterResult:
    """Return the filter result of a gross fault, whose filter is not evaluated; `expected_z` is its size, if that is finite."""
    return FilterResult(direction.fault.name, direction.step, 0.0, 0.0, min(size, sys.float_info.max))


def projection_result(direction: Direction, found: Projection, threshold: float, widest: Projection | None = None) -> FilterResult:
    """Return whether a projection on a fault's direction, at a threshold of |z|, detects it, and what it confirms of a number.

    This is confirmed under the hypothesis with the largest sigma (`widest`) as well, by which a failing step may still pass.
    """
    detected = is_detected(found, threshold, signed=direction.parameter is None)
    seen = found.result(direction.fault.name, direction.step, detected=detected)
    if direction.parameter is None or direction.share is None:
        return seen
    least = direction.deviation * max(one.separable for one in (found, widest) if one)
    usual = abs(direction.deviation) / direction.share
    return replace(seen, confirmed=Confirmed(direction.parameter.name, direction.right, least if abs(least) <= usual else math.inf))


def is_detected(found: Projection, threshold: float, *, signed: bool) -> bool:
    """Return whether a projection on a fault's effect shows, at a threshold of |z|, that the residual is not noise.

    The effect of a fault without a parameter is `signed`: it has its full size. A parameter may be wrong by any amount.
    """
    if signed:
        return min(found.z, found.expected_z) > threshold and found.amplitude > 0.5
    return abs(found.z) > threshold


ROWS = 16  # The most rows that are looked at, which limits the cost: one propagation through the segment each.


def row_nlls(residual: Array, effect: Array, noises: Sequence[Noise], fails: Sequence[bool], draw_count: int) -> list[float]:
    """Return −ln of the likelihood of the rows' projections under each hypothesis, in nats, up to a common constant.

    This is the evidence from the rows of a residual, where steps are not exposed and only a mistake's filter fails. An error that
    the elements of a row share, such as that of a LayerNorm's inverse root rounded to a half format, hardly changes the RMS, but
    the filter of a mistake with the same effect sums it over the row. The elementwise likelihood (`LocalJudgement.nll`) cannot
    distinguish such an arithmetic from a mistake under a tighter one; the signs of the rows' projections can: a mistake moves all
    rows in one direction, while rounding moves each row in its own. Hence the pair of the tighter arithmetic and the mistake,
    whose effect is subtracted, is compared with the wider arithmetic and no mistake.

    Let d be the effect of the mistake and w the inverse variances under the tightest hypothesis. The statistic of row r is

        t_r = Σ_i w_ri d_ri e_ri, over the elements i of the row, for the residual e,

    with the variance V_r under a hypothesis, all correlations included. Up to a constant, −ln of the likelihood of t_r, taken as
    normal, is t_r²/(2 V_r) + ½ ln V_r. Its mean over the rows times the number of independent draws is a power at most 1 of the
    likelihood. The mean over any rows is such a power; over n rows its standard deviation is √(1/2n) nats a draw under the right
    hypothesis, since the variance of χ²₁/2 is 1/2.

    Args:
        residual: the candidate's array minus the oracle's, (..., n).
        effect: the effect d of the mistake, of the same shape.
        noises: the noise under each hypothesis, the tightest first; a deterministic bound b counts as a variance b²/3.
        fails: whether the mistake's filter fails under each hypothesis; the hypothesis then includes the mistake, whose effect is
            subtracted with the amplitude <e, d>/<d, d>.
        draw_count: the number of independent draws of noise.
    """
    judged = noises[0].judged
    weights, rows, residual = noises[0].precision * effect, _rows(judged), zeroed(residual, judged)
    corrected = residual - float(np.vdot(weights, residual)) / float(np.vdot(weights, effect)) * effect
    found = np.zeros((len(noises), len(rows)))
    for number, row in enumerate(rows):
        direction = np.zeros_like(weights)
        direction[row] = weights[row]
        with_mistake, without = (float(np.vdot(direction, e)) ** 2 for e in (corrected, residual))
        for which, (noise, failing) in enumerate(zip(noises, fails, strict=True)):
            squared = with_mistake if failing else without
            random, bound = noise.projected(direction)
            variance = random + bound**2 / 3.0
            if variance > 0.0:
                found[which, number] = squared / (2.0 * variance) + 0.5 * np.log(variance)
    return [float(nll) * draw_count for nll in found.mean(1)]


def _rows(judged: Mask) -> list[tuple[int, ...]]:
    """Return the indices of up to `ROWS` rows with a judged element, evenly spread; a scalar is one row."""
    rows = np.argwhere(judged.any(-1) if judged.ndim else judged)
    some = np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(np.int64)
    return [tuple(int(i) for i in row) for row in rows[some]]
