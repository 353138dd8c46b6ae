"""The faults that are looked for in a segment: those in the activation's own layer, and those in other layers."""

from collections.abc import Iterator
from functools import cache

from conformance.faults import CATALOGUE, Fault
from conformance.judge.fault_directions import Direction, direction
from conformance.judge.search.placements import SINGLE, FaultPlacement
from conformance.judge.segment import Segment
from conformance.numerics.formats import Format


def effective_directions(segment: Segment, storage: Format, *, after_failure: bool = False) -> Iterator[Direction]:
    """Yield the faults that change the result from a step in the activation's own layer, or by replacing a whole layer.

    Args:
        segment: the segment.
        storage: storage format of the candidate.
        after_failure: whether to yield the faults that are looked for after a failure only, in place of the others.
    """
    return (found for found in possible_directions(segment, storage, after_failure=after_failure) if found.effect is not None)


def _is_of_its_layer(segment: Segment, step: str) -> bool:
    table = segment.network.table
    return table[step].layer == table[segment.name].layer


def possible_directions(segment: Segment, storage: Format, *, after_failure: bool = False) -> list[Direction]:
    """Return the faults of `effective_directions`, including those that do not change the result, without evaluating any of them.

    Used on a part of an activation, or before any fault is evaluated.
    """
    near = (
        (f, n)
        for f, n in faults_at_steps(segment)
        if f.after_failure == after_failure and (f.replaces_layer or _is_of_its_layer(segment, n))
    )
    return [direction(fault, name, segment, storage) for fault, name in near]


def in_other_layers(segment: Segment) -> list[FaultPlacement]:
    """Return the faults at steps of other layers than the activation's own, apart from those that replace a whole layer."""
    far = ((f, n) for f, n in faults_at_steps(segment) if not f.replaces_layer and not _is_of_its_layer(segment, n))
    return [FaultPlacement(fault, (name,), SINGLE) for fault, name in far]


def faults_at_steps(segment: Segment) -> Iterator[tuple[Fault, str]]:
    """Yield (fault, step name) for every fault and every step of the segment on which it can act."""
    for name, step in segment.steps.items():
        row = step.site.activation
        for fault in _faults_at(row.kind, row.name):
            yield fault, name


@cache
def _faults_at(kind: str, name: str) -> tuple[Fault, ...]:
    """Return the faults that can act on an activation of this kind and name, in the order of the catalogue."""
    return tuple(fault for fault in CATALOGUE if fault.is_possible_at(kind, name))
