"""Directions: where in a segment a fault can act, and how the fault changes the segment's result."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from conformance.faults import CATALOGUE, Fault, FaultContext, Parameter
from conformance.judge.search.placements import SINGLE, FaultPlacement
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array, Format
from conformance.numerics.memo import cached_property


@dataclass(frozen=True)
class Direction:
    """A fault at a step of a segment, and the segment with this fault.

    Attributes:
        fault: the fault.
        step: name of the step.
        base: the segment without the fault; it may have other faults.
        context: the context in which the fault is applied.
    """

    fault: Fault
    step: str
    base: Segment
    context: FaultContext

    def applied(self, value: float | None = None) -> Segment | None:
        """Return the segment with the fault and a value of its parameter; None if the fault changes nothing at this step."""
        right = self.base.steps[self.step]
        faulty = self.fault.applied(right, self.context, value)
        if faulty is None or (value is None and np.array_equal(faulty.value, right.value)):
            return None
        return self.base.replacing(self.step, faulty)

    @cached_property
    def usual(self) -> Segment | None:
        """The segment with the fault at its usual parameter value; None if it changes nothing."""
        return self.applied()

    @cached_property
    def effect(self) -> Array | None:
        """The change of the result: faulty minus correct; None if there is no change."""
        return None if self.usual is None else self.usual.value - self.base.value

    @property
    def known_effect(self) -> Array:
        """The change of the result, as `effect`, for a fault that is known to change it."""
        assert self.effect is not None
        return self.effect

    @property
    def parameter(self) -> Parameter | None:
        """The fault's parameter; None if it has none."""
        return self.fault.parameter

    def on(self, base: Segment) -> "Direction":
        """Return the same fault on another base."""
        return self if base is self.base else direction(self.fault, self.step, base, self.context.storage)


def direction(fault: Fault, step: str, base: Segment, storage: Format) -> Direction:
    """Return the direction of a fault at a step of `base`."""
    return Direction(fault, step, base, FaultContext(base.network, base.values, storage))


def directions(segment: Segment, storage: Format, *, after_failure: bool = False) -> Iterator[Direction]:
    """Yield the faults that change the result from a step in the activation's own layer, or by replacing a whole layer.

    Args:
        segment: the segment.
        storage: storage format of the candidate.
        after_failure: whether to yield the faults that are looked for after a failure only, in place of the others.
    """
    return (found for found in candidate_directions(segment, storage, after_failure=after_failure) if found.effect is not None)


def _is_of_its_layer(segment: Segment, step: str) -> bool:
    table = segment.network.table
    return table[step].layer == table[segment.name].layer


def candidate_directions(segment: Segment, storage: Format, *, after_failure: bool = False) -> list[Direction]:
    """Return the faults of `directions`, including those that do not change the result, without evaluating any of them.

    Used on a part of an activation, or before any fault is evaluated.
    """
    near = (
        (f, n)
        for f, n in faults_at_steps(segment)
        if f.after_failure == after_failure and (f.replaces_layer or _is_of_its_layer(segment, n))
    )
    return [direction(fault, name, segment, storage) for fault, name in near]


def in_other_layers(segment: Segment) -> list[FaultPlacement]:
    """Return the faults at steps of other layers than the activation's own, apart from those that `looked_for` returns."""
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
