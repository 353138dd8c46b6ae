"""Filters on the outputs of the correct network: which faults they detect, and which they would have detected if present."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from conformance.diagnosis.black_box import BlackBoxSegment
from conformance.diagnosis.judgement import JudgedForward
from conformance.diagnosis.problem import PrintedProblem
from conformance.judge.filters import expected_z, is_detected, is_gross, largest_element, project
from conformance.judge.search.budget import RIGHT, SearchBudget
from conformance.judge.search.parameters import right_value, wrong_value
from conformance.judge.search.placements import FaultPlacement, with_faults
from conformance.numerics.formats import NUDGE, Array


class Filtered(NamedTuple):
    """The result of the filter of a fault under one pooling.

    Attributes:
        name: name of the fault.
        expected_z: the z that the fault would have if it were present; 0 if it changes none of the numbers.
        effect: the fault's effect, if it is in the residual beyond noise; else None.
    """

    name: str
    expected_z: float
    effect: Array | None = None


def apply_filters(base: JudgedForward, part: PrintedProblem, pooling_index: int, budget: SearchBudget) -> Iterator[Filtered]:
    """Apply every filter under one pooling; a gross fault needs none, because the largest error reveals it.

    Args:
        base: the correct network with its noise.
        part: the problem on a part of the batch; the effect of a fault that is gross there is not computed on the whole batch.
        pooling_index: index of the pooling.
        budget: the budget of the search.
    """
    forward, limits, ancestors = base.forward, base.limits(pooling_index), base.forward.ancestors(pooling_index)
    placements = [s for s in forward.filtered if not ancestors.isdisjoint(s.places)]
    noise, residual = base.noise(pooling_index), base.residual[pooling_index]
    budget.begin(RIGHT, len(placements))
    for placement in placements:
        if not budget.take_one():
            break
        on_part = effect_of_fault(part.right, placement, None, pooling_index)
        z = 0.0 if on_part is None else float((np.abs(on_part) / part.sigma[pooling_index]).max())
        pattern = None
        if not is_gross(z, limits.max):
            pattern = effect_of_fault(forward, placement, None, pooling_index)
            z = 0.0 if pattern is None else expected_z(pattern, noise, limits.max)
        if placement.fault.parameter is not None:  # for a slightly wrong parameter, the effect is the derivative
            right, wrong = (of(placement, forward) for of in (right_value, wrong_value))
            pattern = effect_of_fault(forward, placement, right + NUDGE * abs(wrong - right), pooling_index)
        elif pattern is not None and is_gross(largest_element(pattern, noise), limits.max):
            pattern = None
        projection = None if pattern is None else project(residual, pattern, noise)
        signed = placement.fault.parameter is None
        is_present = projection is not None and is_detected(projection, limits.filter, signed=signed)
        yield Filtered(placement.fault.name, z, pattern if is_present else None)


def effect_of_fault(right: BlackBoxSegment, placement: FaultPlacement, value: float | None, pooling_index: int) -> Array | None:
    """Return the effect of a fault on the numbers, with the usual faulty value if `value` is None, or None if it has none."""
    faulty = with_faults(right, [placement.of(value)], right.storage)
    if not faulty.is_effective:
        return None
    effect = faulty.segment.value[pooling_index] - right.value[pooling_index]
    return np.where(np.isfinite(effect), effect, np.sign(effect) * np.finfo(np.float32).max) if effect.any() else None
