"""Directions: where in a segment a fault can act, and how it moves the segment's result."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.faults import BY_NAME, CATALOGUE, Fault, FaultContext, Parameter
from conformance.judge.noise import Noise
from conformance.judge.segment import Segment
from conformance.numerics.formats import Array, Format
from conformance.numerics.memo import cached_property
from conformance.oracle import Step

CANDIDATE_FAULTS = 12  # of a whole network's faults, how many are followed up; each costs a few passes of the oracle


@dataclass(frozen=True)
class Direction:
    """A fault at a step of a segment, or at several at once, and the segment with it.

    Attributes:
        base: the segment without the fault; it may have others.
        also: further steps, behind it, at which the fault acts as well, its parameter of the same value.
    """

    fault: Fault
    step: str
    base: Segment
    place: FaultContext
    also: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        """All at which it acts, in the order of computation."""
        return (self.step, *self.also)

    def applied(self, value: float | None = None) -> Segment | None:
        """The segment with the fault, its parameter of that value; None where the fault changes nothing.

        Nor is there one where it changes the shape, as parameters of a layer with other heads do: that is seen before any value.
        """
        found = self.base.changing(self.steps, partial(self._faulty, value))
        return None if found is None or all(found.steps[n] is self.base.steps[n] for n in self.steps) else found

    def _faulty(self, value: float | None, right: Step, so_far: Segment) -> Step | None:
        """The faulty step; the right one where the fault changes nothing of it."""
        place = (
            self.place if right is self.base.steps[self.step] else FaultContext(so_far.network, so_far.values, self.place.storage)
        )
        faulty = self.fault.applied(right, place, value)
        if faulty is None or faulty.value.shape != right.value.shape:
            return None
        return right if value is None and np.array_equal(faulty.value, right.value) else faulty

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
        return self if base is self.base else direction(self.fault, self.steps, base, self.place.storage)


def direction(fault: Fault, steps: Sequence[str], base: Segment, storage: Format) -> Direction:
    """A fault at steps of `base`, in the order of computation."""
    return Direction(fault, steps[0], base, FaultContext(base.network, base.values, storage), tuple(steps[1:]))


def directions(segment: Segment, storage: Format, *, late: bool = False) -> Iterator[Direction]:
    """The faults that move the result from a step of the segment in the activation's own layer, or by replacing a whole one.

    Those that are looked for always, or those that are looked for late.
    """
    for fault, name in placements(segment):
        if fault.late == late and (fault.far or _is_of_its_layer(segment, name)):
            found = direction(fault, (name,), segment, storage)
            if found.moved is not None:
                yield found


def _is_of_its_layer(segment: Segment, step: str) -> bool:
    table = segment.network.table
    return table[step].layer == table[segment.name].layer


def looked_for(probe: Segment, storage: Format) -> list[Direction]:
    """The faults that are looked for always, on a part of an activation, whether they move that part or not."""
    near = ((f, n) for f, n in placements(probe) if not f.late and (f.far or _is_of_its_layer(probe, n)))
    return [direction(fault, (name,), probe, storage) for fault, name in near]


@dataclass(frozen=True)
class FirstOrder:
    """To first order, what each fault at each step of a segment would account for.

    With w = r/σ² a change e of a step moves <r, result> by Σ e · (Jᵀ w): one sweep back serves all faults. The fault that made the
    residual r moves it by <r,r>.

    Attributes:
        shares: by fault and step, what it moves <r, result> by, in <r,r>.
    """

    segment: Segment
    storage: Format
    shares: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, segment: Segment, storage: Format, actual: Array, noise: Noise) -> "FirstOrder":
        """Of all faults that make sense somewhere in the segment."""
        residual = actual - segment.value
        weighted = noise.precision * residual
        energy, adjoints = float(np.vdot(weighted, residual)), segment.adjoints(weighted)
        place = FaultContext(segment.network, segment.values, storage)
        shares = {}
        for fault, name in placements(segment):
            faulty, right = fault.applied(segment.steps[name], place), segment.steps[name].value
            if faulty is not None and faulty.value.shape == right.shape:
                shares[fault.name, name] = float((adjoints[name] * (faulty.value - right)).sum()) / energy
        return cls(segment, storage, shares)

    def further(self) -> list[Direction]:
        """Of the faults in layers further back the few that are likeliest; each is then followed up exactly.

        Only those that move it by half to twice <r,r>.
        """
        scores = [
            (abs(math.log(share)), BY_NAME[fault], name)
            for (fault, name), share in self.shares.items()
            if 0.5 <= share <= 2.0 and not BY_NAME[fault].far and not _is_of_its_layer(self.segment, name)
        ]
        likeliest = sorted(scores, key=lambda s: s[0])[:CANDIDATE_FAULTS]
        return [direction(fault, (name,), self.segment, self.storage) for _, fault, name in likeliest]

    def everywhere(self) -> list[Direction]:
        """Faults at all of several steps at once: the few likeliest, and those that by their nature act wherever they can."""
        steps: dict[str, list[str]] = {}
        for fault, name in self.shares:
            steps.setdefault(fault, []).append(name)
        totals = {fault: sum(self.shares[fault, n] for n in names) for fault, names in steps.items() if len(names) > 1}
        likeliest = sorted((f for f, total in totals.items() if total > 0.0), key=lambda f: abs(math.log(totals[f])))
        chosen = dict.fromkeys([*(f for f in totals if BY_NAME[f].whole), *likeliest[:CANDIDATE_FAULTS]])
        return [direction(BY_NAME[fault], steps[fault], self.segment, self.storage) for fault in chosen]


def placements(segment: Segment) -> Iterator[tuple[Fault, str]]:
    """Every fault at every step of the segment that it can act on."""
    for name, step in segment.steps.items():
        for fault in CATALOGUE:
            if fault.applies_to(step.site.activation):
                yield fault, name
