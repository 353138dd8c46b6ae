"""Filters on the outputs of the correct network: which faults they detect, and which they would have detected if present."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.black_box import BlackBoxSegment
from conformance.diagnosis.conclusions import Unseen
from conformance.diagnosis.judgement import JudgedForward
from conformance.diagnosis.printed_problem import PrintedProblem
from conformance.judge.filters import expected_z, is_detected, is_gross, largest_element, project
from conformance.judge.search.budget import RIGHT, SearchBudget
from conformance.judge.search.parameters import right_value, wrong_value
from conformance.judge.search.placements import EVERYWHERE, FaultPlacement, with_faults
from conformance.numerics.formats import NUDGE, Array
from conformance.numerics.thresholds import SEPARABLE_Z, Limits


@dataclass(frozen=True)
class PoolingDetectability:
    """The results of the filters under one pooling.

    Attributes:
        detected: faults whose effect is in the residual beyond noise, each with that effect.
        shown, unseen: faults that would have been detected, and faults that would not.
    """

    detected: tuple[tuple[str, Array], ...]
    shown: tuple[str, ...]
    unseen: tuple[Unseen, ...]


def filtered_placements(placements: Iterable[FaultPlacement]) -> list[FaultPlacement]:
    """Return one placement for each fault, at all of its places; formats are excluded, because RMS detects them."""
    return [s for s in placements if s.reach == EVERYWHERE and not s.fault.after_failure]


def apply_filters(
    judged: JudgedForward,
    part: PrintedProblem,
    pooling_index: int,
    placements: Sequence[FaultPlacement],
    limits: Limits,
    budget: SearchBudget,
) -> PoolingDetectability:
    """Apply every filter under one pooling; a gross fault needs none, because the largest error reveals it.

    Args:
        judged: the correct network with its noise.
        part: the problem on a part of the batch; the effect of a fault that is gross there is not computed on the whole batch.
        pooling_index: index of the pooling.
        placements: the faults.
        limits: the limits of the statistics.
        budget: the budget of the search.
    """
    placements = [s for s in placements if not judged.forward.ancestors(pooling_index).isdisjoint(s.places)]
    detected: list[tuple[str, Array]] = []
    shown: list[str] = []
    unseen: list[Unseen] = []
    noise, residual = judged.noise(pooling_index), judged.residual[pooling_index]
    budget.begin(RIGHT, len(placements))
    for placement in placements:
        if not budget.take_one():
            break
        some = effect_of_fault(part.right, placement, None, pooling_index)
        z = 0.0 if some is None else float((np.abs(some) / part.sigma[pooling_index]).max())
        pattern = None
        if not is_gross(z, limits.max):
            pattern = effect_of_fault(judged.forward, placement, None, pooling_index)
            z = 0.0 if pattern is None else expected_z(pattern, noise, limits.max)
        if z < SEPARABLE_Z:
            unseen.append(Unseen(placement.fault.name, z))
        else:
            shown.append(placement.fault.name)
        if placement.fault.parameter is not None:  # for a slightly wrong parameter, the effect is the derivative
            right, wrong = (of(placement, judged.forward) for of in (right_value, wrong_value))
            pattern = effect_of_fault(judged.forward, placement, right + NUDGE * abs(wrong - right), pooling_index)
        elif pattern is not None and is_gross(largest_element(pattern, noise), limits.max):
            continue
        found = None if pattern is None else project(residual, pattern, noise)
        if pattern is not None and found and is_detected(found, limits.filter, signed=placement.fault.parameter is None):
            detected.append((placement.fault.name, pattern))
    return PoolingDetectability(tuple(detected), tuple(shown), tuple(unseen))


def effect_of_fault(right: BlackBoxSegment, placement: FaultPlacement, value: float | None, pooling_index: int) -> Array | None:
    """Return the effect of a fault on the numbers, with the usual faulty value if `value` is None, or None if it has none."""
    faulty = with_faults(right, [placement.of(value)], right.storage)
    if not faulty.is_effective:
        return None
    effect = faulty.segment.value[pooling_index] - right.value[pooling_index]
    return np.where(np.isfinite(effect), effect, np.sign(effect) * np.finfo(np.float32).max) if effect.any() else None
