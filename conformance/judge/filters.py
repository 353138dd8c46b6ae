"""Matched filters: a fault is looked for along the direction in which it moves a result.

With r the local residual, d the fault's direction (faulty minus right result, on the candidate's own parents), σ the sigma of
each element, b the bound on its deterministic error, and <x,y> = Σ x y / (σ² + b²):

    amplitude a = <r,d> / <d,d>,        z = <r,d> / sd(<n,d>)

where the standard deviation of the noise's own projection counts every correlation (`Segment.projection_variance`), and what
deterministic errors can add at most, <b,|d|>, is taken off |<r,d>| first. (Turin 1960, *An introduction to matched filters*.)
"""

from collections.abc import Iterator

import numpy as np

from conformance.faults import CATALOGUE, Fault
from conformance.judge.evidence import Filtered
from conformance.judge.segment import Override, Segment
from conformance.judge.selection import Mask
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array
from conformance.oracle import Network, Step


def directions(network: Network, segment: Segment) -> Iterator[tuple[Fault, str, Array]]:
    """Every fault that can strike a step of the segment, the step's name, and the faulty result minus the right one."""
    for name, step in segment.steps.items():
        for fault in CATALOGUE:
            if not fault.strikes(step.site.activation):
                continue
            faulty = fault.change(step, network)
            if faulty is None or np.array_equal(faulty, step.value):
                continue
            result = faulty if segment.is_single_step else segment.value_with(_only(name, faulty))
            yield fault, name, result - segment.value


def _only(name: str, faulty: Array) -> Override:
    def override(step: Step) -> Array | None:
        return faulty if step.site.activation.name == name else None

    return override


def matched(
    fault: Fault,
    struck: str,
    direction: Array,
    residual: Array,
    segment: Segment,
    hypothesis: Hypothesis,
    sigma: Array,
    judged: Mask,
) -> Filtered | None:
    """One fault's filter; None where the fault does not move the result at all."""
    limit = segment.bound(hypothesis)
    weighted = np.where(judged, direction / (sigma**2 + np.square(limit)), 0.0)
    energy = float((weighted * direction).sum())
    if energy == 0.0:
        return None
    bound = float((np.abs(weighted) * limit).sum())
    deviation = float(np.sqrt(segment.projection_variance(weighted, hypothesis)))
    projection = float((weighted * residual).sum())
    amplitude = projection / energy
    parameter = fault.parameter(segment.steps[struck]) if fault.parameter else None
    return Filtered(
        fault.name,
        struck,
        amplitude,
        float(np.sign(projection)) * max(abs(projection) - bound, 0.0) / deviation,
        max(energy - bound, 0.0) / deviation,
        deviation / energy,
        bound / energy,
        parameter.name if parameter else None,
        parameter.right if parameter else None,
        parameter.wrong if parameter else None,
    )
