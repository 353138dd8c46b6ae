"""Hypotheses: a fault wherever it can act on, in one kind of place, in one layer or at one place; and the network that has some.

A port usually makes a mistake in every layer. All faults of a set are composed in one walk in the order of computation: each
acts on the step that the others have led to, and what lies before the first is not computed again; nor what a network that has all
but the last has computed already.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.diagnosis.closed import PRINTED, BlackBox
from conformance.faults import CATALOGUE, Fault, FaultContext
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Format
from conformance.oracle import Step
from conformance.oracle.maps import Roundings

EVERYWHERE, KIND, LAYER, SINGLE = range(4)  # how far a fault reaches; of what cannot be distinguished the widest is reported first
_LAYER = re.compile(r"encoder\.layer\.\d+\.")
_SELF = ("query", "key", "value")


@dataclass(frozen=True)
class FaultPlacement:
    """A fault at all of these places, its parameter of that value (None: its usual one).

    Attributes:
        reach: EVERYWHERE, KIND (of place, in every layer), LAYER or SINGLE.
    """

    fault: Fault
    places: tuple[str, ...]
    reach: int
    value: float | None = None

    def of(self, value: float | None) -> "FaultPlacement":
        """The same with another value."""
        return replace(self, value=value)

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The same for placements that differ in value alone."""
        return self.fault.name, self.places


class Forward(Segment):
    """The network, from token ids or known activations to the numbers printed, evaluated; right, or with faults.

    Attributes:
        placements: the faults.
        changed: the activations that they change.
        landed: by place, the keys of those that make sense there.
    """

    network: BlackBox

    def __init__(self, network: BlackBox, storage: Format) -> None:
        """Evaluate it; `storage` is the format that is promised."""
        super().__init__(network, PRINTED, network.leaves)
        self.storage = storage
        self.placements: tuple[FaultPlacement, ...] = ()
        self.changed: set[str] = set()
        self.landed: dict[str, frozenset[tuple[str, tuple[str, ...]]]] = {}

    def _own(self, name: str, arithmetic: Arithmetic) -> Roundings:
        """Numbers are printed once: printing's rounding is not the oracle's as well."""
        return self.steps[name].roundings(arithmetic) if name == PRINTED else super()._own(name, arithmetic)

    def ancestors(self, pooling_index: int) -> frozenset[str]:
        """The activations that the numbers printed are computed from under one pooling."""
        todo = [part.parent for part in self.network.reading.parts if part.lanes.start <= pooling_index < part.lanes.stop]
        found = set(todo)
        while todo:
            parents = set(self.network.table[todo.pop()].parents) - found
            found |= parents
            todo += parents
        return frozenset(found)

    def with_(self, placements: Sequence[FaultPlacement], like: "Forward | None" = None) -> "Forward | None":
        """The network with all these faults; None where they change nothing that was printed, or make no sense.

        `self` must be the right network; `like` has some of the faults, and where nothing differs from it, its steps are taken.
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
                # A fault may read other activations than the parents of the step that it acts on.
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
        """The right step with these faults, of the parents' values at `place`; which of them land there is noted."""
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
    """Every fault of the catalogue, at all of its places and at each set of them that a mistake is likely to reach."""
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
    """A place without its layer."""
    return _LAYER.sub("", name)


def layers_of(places: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Kinds of place, each with the layers in which it acts; none for what is in no layer."""
    found: dict[str, list[int]] = {}
    for name in places:
        layer = _LAYER.match(name)
        found.setdefault(kind_of(name), []).extend([int(layer[0].split(".")[2])] if layer else [])
    return {kind: tuple(layers) for kind, layers in found.items()}
