"""Placements of faults, and the network evaluated with a set of them.

A fault acts everywhere it can, in one kind of place, in one layer, or at one place; a port usually makes a mistake in every layer.
All faults of a set are applied in one pass in the order of computation: each acts on the step as the other faults have changed it.
Steps before the first fault are not recomputed, and neither are those already computed for a set that lacks only the last fault.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.diagnosis.black_box import PRINTED, BlackBox
from conformance.faults import CATALOGUE, Fault, FaultContext
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Format
from conformance.oracle import Step
from conformance.oracle.maps import Roundings

EVERYWHERE, KIND, LAYER, SINGLE = range(4)  # reach of a fault; among indistinguishable ones the widest is reported first
_LAYER = re.compile(r"encoder\.layer\.\d+\.")
_SELF = ("query", "key", "value")


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
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The fault's name and places, which are equal for placements that differ only in value."""
        return self.fault.name, self.places


class Forward(Segment):
    """The network, correct or with faults, evaluated from token ids or known activations to the printed numbers.

    Attributes:
        network: the black box.
        storage: the promised format.
        placements: the faults.
        changed: the activations that the faults change.
        landed: for each place, the keys of the placements that are applicable there.
    """

    network: BlackBox

    def __init__(self, network: BlackBox, storage: Format) -> None:
        """Evaluate the network without faults; `storage` is the promised format."""
        super().__init__(network, PRINTED, network.leaves)
        self.storage = storage
        self.placements: tuple[FaultPlacement, ...] = ()
        self.changed: set[str] = set()
        self.landed: dict[str, frozenset[tuple[str, tuple[str, ...]]]] = {}

    def _own(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """Return the step's roundings; those of printing are not doubled for float64, because the oracle prints nothing."""
        return self.steps[name].roundings(arithmetic) if name == PRINTED else super()._own(name, arithmetic)

    def ancestors(self, pooling_index: int) -> frozenset[str]:
        """Return the names of the activations from which the printed numbers are computed under one pooling."""
        todo = [part.parent for part in self.network.reading.parts if part.lanes.start <= pooling_index < part.lanes.stop]
        found = set(todo)
        while todo:
            parents = set(self.network.table[todo.pop()].parents) - found
            found |= parents
            todo += parents
        return frozenset(found)

    def with_(self, placements: Sequence[FaultPlacement], like: "Forward | None" = None) -> "Forward | None":
        """Return the network with these faults, or None if they change no printed number or one of them is not applicable.

        Args:
            placements: the faults.
            like: a network with some of these faults, whose unchanged steps are reused. `self` must be the correct network.
        """
        like = like or self
        at, before = _by_place(placements), _by_place(like.placements)
        other = copy.copy(self)
        other.__dict__.pop("values", None)
        other.placements, other.landed, other.changed = tuple(placements), {}, set()
        values: dict[str, Array] = {**self.leaves, **{name: step.value for name, step in self.steps.items()}}
        other.steps = steps = dict(self.steps)
        place = FaultContext(self.network, values, self.storage)
        differs: set[str] = set()
        with np.errstate(all="ignore"):
            for name in self._names:
                applied = at.get(name, ())
                # A fault may read activations other than the parents of its step.
                unlike = applied != before.get(name, ()) or (applied and differs)
                if unlike or not differs.isdisjoint(self.network.table[name].parents):
                    steps[name] = other._struck(name, applied, place)
                    if name in other.changed or name in like.changed:
                        differs.add(name)
                else:
                    steps[name], other.landed[name] = like.steps[name], like.landed.get(name, frozenset())
                    other.changed |= {name} & like.changed
                if name in other.changed:
                    values[name] = steps[name].value
        landed = frozenset().union(*other.landed.values())
        if PRINTED not in other.changed or len(landed) < len({s.key for s in placements}):
            return None
        other._roundings = {key: own for key, own in self._roundings.items() if key[0] not in other.changed}
        other._repeats = {}
        return other

    def _struck(self, name: str, placements: Sequence[FaultPlacement], place: FaultContext) -> Step:
        """Return the correct step with these faults applied to the values at `place`; record which of them are applicable."""
        right, parents = self.steps[name], self.network.table[name].parents
        moved = not self.changed.isdisjoint(parents)
        step = before = right.again(parents=tuple(place.values[p] for p in parents)) if moved else right
        landed = set()
        for placement in placements:
            faulty = placement.fault.applied(step, place, placement.value)
            if faulty is not None and faulty.value.shape == step.value.shape:
                step = faulty
                landed.add(placement.key)
        self.landed[name] = frozenset(landed)
        if not moved and (step is before or np.array_equal(step.value, before.value)):
            return right
        self.changed.add(name)
        return step


def _by_place(placements: Sequence[FaultPlacement]) -> Mapping[str, list[FaultPlacement]]:
    found: dict[str, list[FaultPlacement]] = {}
    for placement in placements:
        for where in placement.places:
            found.setdefault(where, []).append(placement)
    return found


def placements(forward: Forward) -> tuple[FaultPlacement, ...]:
    """Return a placement of every fault at all of its places, and at each subset of them that a mistake is likely to affect."""
    rows = {name: step.site.activation for name, step in forward.steps.items()}
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
    if fault.whole or fault.late:
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
