"""Placements of faults, and a segment evaluated with a set of them.

A fault acts everywhere it can, in one kind of place, in one layer, or at one place; a port usually makes a mistake in every layer.
All faults of a set are applied in one pass in the order of computation: each acts on the step as the other faults have changed it.
Steps before the first fault are not recomputed, and neither are those of a set that lacks only the last fault.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.faults import CATALOGUE, Fault, FaultContext, Parameter
from conformance.faults.fault import EVERY_LAYER, WHOLE_LAYER
from conformance.judge.segment import Segment
from conformance.numerics.formats import Format
from conformance.oracle import Step

EVERYWHERE, KIND, LAYER, SINGLE = range(4)  # reach of a fault; among indistinguishable ones the widest is reported first
Key = tuple[str, tuple[str, ...]]
_LAYER = re.compile(r"encoder\.layer\.\d+\.")
_SELF = ("query", "key", "value")
FARTHEST = 8.0  # largest factor by which one step may change a parameter's distance to its least sensible value


@dataclass(frozen=True)
class FaultPlacement:
    """A fault at a set of places, with a value of its parameter.

    Attributes:
        fault: the fault.
        places: activations on whose steps it acts.
        reach: EVERYWHERE, KIND (one kind of place, in every layer), LAYER or SINGLE.
        value: value of the parameter; None for the usual faulty value.
    """

    fault: Fault
    places: tuple[str, ...]
    reach: int
    value: float | None = None

    def of(self, value: float | None) -> "FaultPlacement":
        """Return the placement with another value of the parameter."""
        return replace(self, value=value)

    @property
    def parameter(self) -> Parameter:
        """The fault's parameter, of a fault that has one."""
        assert self.fault.parameter is not None
        return self.fault.parameter

    def right(self, segment: Segment) -> float:
        """Return the correct value of the parameter, from the checkpoint."""
        return self.parameter.right(segment.steps[self.places[0]])

    def wrong(self, segment: Segment) -> float:
        """Return the usual faulty value of the parameter."""
        return self.parameter.wrong(segment.steps[self.places[0]])

    def number(self, segment: Segment) -> float:
        """Return the value of the parameter."""
        return self.wrong(segment) if self.value is None else self.value

    def moved(self, step: float, segment: Segment) -> "FaultPlacement":
        """Return the placement with its parameter one step on, limited to a change of its distance to the least by `FARTHEST`."""
        least, number = self.parameter.least, self.number(segment)
        usual = abs(self.wrong(segment) - self.right(segment))
        nearest = least + max(number - least, 0.0) / FARTHEST
        return self.of(min(max(number + step, nearest), least + max(number - least, usual) * FARTHEST))

    @property
    def key(self) -> Key:
        """The fault's name and places, which are equal for placements that differ only in value."""
        return self.fault.name, self.places


@dataclass(frozen=True, eq=False)
class FaultySegment:
    """A segment with faults.

    Attributes:
        segment: the segment, evaluated with the faults.
        placements: the faults.
        changed: the steps whose results the faults change.
        effective: for each place, the keys of the placements that change the step there.
    """

    segment: Segment
    placements: tuple[FaultPlacement, ...] = ()
    changed: frozenset[str] = frozenset()
    effective: Mapping[str, frozenset[Key]] = field(default_factory=dict)

    @property
    def is_effective(self) -> bool:
        """Whether every fault changes a step, and the segment's result changes."""
        found: frozenset[Key] = frozenset().union(*self.effective.values())
        return self.segment.name in self.changed and all(p.key in found for p in self.placements)


def with_faults(
    right: Segment, placements: Sequence[FaultPlacement], storage: Format, base: FaultySegment | None = None
) -> FaultySegment:
    """Return a segment with these faults.

    Args:
        right: the correct segment.
        placements: the faults.
        storage: storage format of the candidate.
        base: the segment with the first of these faults; it is evaluated again from the first step with one of the others.
    """
    base = base or FaultySegment(right)
    faults, further = _by_place(placements), _by_place(placements[len(base.placements) :])
    steps, changed, effective = dict(right.steps), set[str](), dict[str, frozenset[Key]]()
    values = {name: step.value for name, step in steps.items()}
    context = FaultContext(right.network, ChainMap(values, right.captured), storage)  # type: ignore[arg-type]  # only read
    is_of_base = True
    with np.errstate(all="ignore"):
        for name, step in right.steps.items():
            is_of_base = is_of_base and name not in further
            parents = right.network.table[name].parents
            reads_changed = not changed.isdisjoint(parents)
            if is_of_base:
                steps[name] = base.segment.steps[name]
                effective[name] = base.effective.get(name, frozenset())
            elif reads_changed or name in faults:
                step = step.replaced(parents=tuple(context.values[p] for p in parents)) if reads_changed else step
                steps[name], effective[name] = _applied(step, faults.get(name, ()), context)
            if reads_changed or effective.get(name):
                changed.add(name)
                values[name] = steps[name].value
    return FaultySegment(right.with_steps(steps, changed), tuple(placements), frozenset(changed), effective)


def _applied(step: Step, placements: Sequence[FaultPlacement], context: FaultContext) -> tuple[Step, frozenset[Key]]:
    """Return the step with the faults applied on top of each other, and the keys of those that change it."""
    effective = set[Key]()
    for placement in placements:
        faulty = placement.fault.applied(step, context, placement.value)
        if faulty is not None and not np.array_equal(faulty.value, step.value):
            step = faulty
            effective.add(placement.key)
    return step, frozenset(effective)


def _by_place(placements: Sequence[FaultPlacement]) -> Mapping[str, list[FaultPlacement]]:
    found: dict[str, list[FaultPlacement]] = {}
    for placement in placements:
        for where in placement.places:
            found.setdefault(where, []).append(placement)
    return found


def placements(segment: Segment) -> tuple[FaultPlacement, ...]:
    """Return a placement of every fault at all of its places, and at each subset of them that a mistake is likely to affect."""
    rows = {name: step.site.activation for name, step in segment.steps.items()}
    found: list[FaultPlacement] = []
    for fault in CATALOGUE:
        places = tuple(name for name, row in rows.items() if fault.applies_to(row))
        seen: set[tuple[str, ...]] = set()
        for reach, some in _reaches(fault, places):
            if some and some not in seen:
                seen.add(some)
                found.append(FaultPlacement(fault, some, reach))
    return tuple(found)


def _reaches(fault: Fault, places: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    yield EVERYWHERE, places
    if fault.extent == EVERY_LAYER or (fault.after_failure and fault.extent != WHOLE_LAYER):
        return
    kinds: dict[str, list[str]] = {}
    layers: dict[str, list[str]] = {}
    for name in places:
        kinds.setdefault(kind_of(name), []).append(name)
        if found := _LAYER.match(name):
            layers.setdefault(found[0], []).append(name)
    inside = tuple(name for part in layers.values() for name in part)
    yield KIND, inside
    yield KIND, tuple(name for name in inside if name.endswith(_SELF))
    for part in kinds.values():
        yield KIND if len(part) > 1 else SINGLE, tuple(part)
    for part in layers.values():
        yield LAYER if len(part) > 1 else SINGLE, tuple(part)
    for name in places:
        yield SINGLE, (name,)


def kind_of(name: str) -> str:
    """Return the name of a place without its layer."""
    return _LAYER.sub("", name)
