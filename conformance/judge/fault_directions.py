"""Directions: where in a segment a fault can act, and how it moves the segment's result."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.faults import CATALOGUE, Fault, FaultContext, Parameter
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array, Format
from conformance.numerics.memo import cached_property

CANDIDATE_FAULTS = 12  # of a whole network's faults, how many are followed up; each costs a few passes of the oracle


@dataclass(frozen=True)
class Direction:
    """A fault at a step of a segment, and the segment with it.

    Attributes:
        base: the segment without the fault; it may have others.
    """

    fault: Fault
    step: str
    base: Segment
    place: FaultContext

    def applied(self, value: float | None = None) -> Segment | None:
        """The segment with the fault, its parameter of that value; None where the fault changes nothing there.

        Nor is there one where it changes the shape, as parameters of a layer with other heads do: that is seen before any value.
        """
        right = self.base.steps[self.step]
        faulty = self.fault.applied(right, self.place, value)
        if faulty is None or faulty.value.shape != right.value.shape:
            return None
        if value is None and np.array_equal(faulty.value, right.value):
            return None
        return self.base.replacing(self.step, faulty)

    @cached_property
    def usual(self) -> Segment | None:
        """With the fault as it usually is."""
        return self.applied()

    @cached_property
    def moved(self) -> Array | None:
        """How the result moves: faulty less right."""
        return None if self.usual is None else self.usual.value - self.base.value

    @property
    def changed(self) -> Array:
        """As `moved`, of a fault that moves something."""
        assert self.moved is not None
        return self.moved

    @property
    def parameter(self) -> Parameter | None:
        """The fault's."""
        return self.fault.parameter

    def on(self, base: Segment) -> "Direction":
        """The same fault on another base."""
        return self if base is self.base else direction(self.fault, self.step, base, self.place.storage)


def direction(fault: Fault, step: str, base: Segment, storage: Format) -> Direction:
    """A fault at a step of `base`."""
    return Direction(fault, step, base, FaultContext(base.network, base.values, storage))


def directions(segment: Segment, storage: Format, *, late: bool = False) -> Iterator[Direction]:
    """The faults that move the result from a step of the segment in the activation's own layer, or by replacing a whole one.

    Those that are looked for always, or those that are looked for late.
    """
    return (found for found in looked_for(segment, storage, late=late) if found.moved is not None)


def _is_of_its_layer(segment: Segment, step: str) -> bool:
    table = segment.network.table
    return table[step].layer == table[segment.name].layer


def looked_for(segment: Segment, storage: Format, *, late: bool = False) -> list[Direction]:
    """The same, whether they move the result or not: on a part of an activation, or before any is evaluated."""
    near = ((f, n) for f, n in placements(segment) if f.late == late and (f.far or _is_of_its_layer(segment, n)))
    return [direction(fault, name, segment, storage) for fault, name in near]


def candidate_faults(segment: Segment, storage: Format, actual: Array, noise: Noise) -> list[Direction]:
    """Of the faults in layers further back, the few that would account for the residual r to first order, likeliest first.

    With w = r/σ² a change e of a step moves <r, result> by Σ e · (Jᵀ w): one sweep back serves all faults. The fault that made r
    moves it by <r,r>. Only those that move it by half to twice that are followed up exactly.
    """
    residual = actual - segment.value
    weighted = noise.precision * residual
    energy, adjoints = float(np.vdot(weighted, residual)), segment.adjoints(weighted)
    place = FaultContext(segment.network, segment.values, storage)
    scores: list[tuple[float, Fault, str]] = []
    for fault, name in placements(segment):
        if not fault.far and not _is_of_its_layer(segment, name):
            faulty, right = fault.applied(segment.steps[name], place), segment.steps[name].value
            if faulty is None or faulty.value.shape != right.shape:
                continue
            share = float((adjoints[name] * (faulty.value - right)).sum()) / energy
            if 0.5 <= share <= 2.0:
                scores.append((abs(math.log(share)), fault, name))
    likeliest = sorted(scores, key=lambda s: s[0])[:CANDIDATE_FAULTS]
    return [direction(fault, name, segment, storage) for _, fault, name in likeliest]


def placements(segment: Segment) -> Iterator[tuple[Fault, str]]:
    """Every fault at every step of the segment that it can act on."""
    for name, step in segment.steps.items():
        for fault in CATALOGUE:
            if fault.applies_to(step.site.activation):
                yield fault, name
