"""A direction: a fault at a step of a segment, and how it changes the segment's result; and the directions of a segment."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from conformance.faults import CATALOGUE, Fault, FaultContext, Parameter
from conformance.faults.fault import WHOLE_LAYER
from conformance.judge.noise import Noise
from conformance.judge.search.placements import SINGLE, FaultPlacement
from conformance.judge.segment import Segment
from conformance.model.gradients import is_gradient
from conformance.numerics.arithmetic import Hypothesis
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
        share: for the direction of a parameter's small deviations, the share of its usual deviation; None for the fault as usual.
    """

    fault: Fault
    step: str
    base: Segment
    context: FaultContext
    share: float | None = None

    def applied(self, value: float | None = None) -> Segment | None:
        """Return the segment with the fault and a value of its parameter; None if the fault changes nothing at this step."""
        right = self.base.steps[self.step]
        faulty = self.fault.applied(right, self.context, value)
        if faulty is None or (value is None and np.array_equal(faulty.value, right.value)):
            return None
        return self.base.replacing(self.step, faulty)

    @property
    def faulty(self) -> Segment | None:
        """The segment with the fault, its parameter at the usual value or at `share`; None if it changes nothing.

        It is evaluated on each access, since it holds the results of all later steps of the segment.
        """
        return self.applied() if self.share is None else self.applied(self.right + self.deviation)

    @property
    def right(self) -> float:
        """The correct value of the parameter."""
        assert self.parameter is not None
        return self.parameter.right(self.base.steps[self.step])

    @property
    def deviation(self) -> float:
        """The deviation of the parameter from its correct value, with its sign."""
        assert self.parameter is not None
        return (self.parameter.wrong(self.base.steps[self.step]) - self.right) * (1.0 if self.share is None else self.share)

    @cached_property
    def effect(self) -> Array | None:
        """The change of the result: faulty minus correct; None if there is no change."""
        faulty = self.faulty
        return None if faulty is None else faulty.value - self.base.value

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
        return (
            self if base is self.base else replace(direction(self.fault, self.step, base, self.context.storage), share=self.share)
        )


def direction(fault: Fault, step: str, base: Segment, storage: Format) -> Direction:
    """Return the direction of a fault at a step of `base`."""
    return Direction(fault, step, base, FaultContext(base.network, base.values, storage))


def energy_of_input_noise(direction: Direction, hypothesis: Hypothesis, noise: Noise) -> float:
    """Return <δ, δ> for the change δ of the direction when every input changes by one rounding error.

    If a candidate consumed its inputs unrounded, the residual contains their rounding errors. So does a direction that is evaluated
    on the rounded inputs: it is d + δ, and <r, d + δ> has the expectation <δ, δ> in a correct candidate. An example is a second
    normalization of values that are normalized already, whose effect is to undo part of their rounding. The errors are drawn, from
    a fixed seed.

    Args:
        direction: the direction, on the captured inputs.
        hypothesis: the hypothesis, which says which inputs were consumed unrounded.
        noise: the noise of the segment.
    """
    base, random = direction.base, np.random.Generator(np.random.Philox(0))
    variance = base.leaf_variance(hypothesis)
    drawn = {n: base.leaves[n] + np.sqrt(3.0 * v) * random.uniform(-1.0, 1.0, v.shape) for n, v in variance.items()}
    moved = direction.on(Segment(base.network, base.name, {**base.captured, **drawn})).effect
    change = direction.known_effect if moved is None else moved - direction.known_effect
    return float(np.vdot(noise.precision * change, change))


def _is_of_its_layer(segment: Segment, step: str) -> bool:
    table = segment.network.table
    return table[step].layer == table[segment.name].layer


def _in_its_pass(segment: Segment) -> Iterator[tuple[Fault, str]]:
    """Yield the faults at steps of the segment; of a gradient's, at those of the backward pass.

    The steps of the forward pass that a candidate does not expose are in the segment of every gradient that is computed through
    them. They are judged once, with the next exposed activation of the forward pass.
    """
    return ((f, n) for f, n in faults_at_steps(segment) if is_gradient(n) or not is_gradient(segment.name))


def possible_directions(segment: Segment, storage: Format, *, after_failure: bool = False) -> list[Direction]:
    """Return the faults at steps of the activation's own layer, or that replace a whole layer, without evaluating any of them.

    Args:
        segment: the segment.
        storage: storage format of the candidate.
        after_failure: whether to return the faults that are looked for after a failure only, in place of the others.
    """
    near = (
        (f, n)
        for f, n in _in_its_pass(segment)
        if f.after_failure == after_failure and (f.extent == WHOLE_LAYER or _is_of_its_layer(segment, n))
    )
    return [direction(fault, name, segment, storage) for fault, name in near]


def in_other_layers(segment: Segment) -> list[FaultPlacement]:
    """Return the faults at steps of other layers than the activation's own, apart from those that replace a whole layer."""
    far = ((f, n) for f, n in _in_its_pass(segment) if f.extent != WHOLE_LAYER and not _is_of_its_layer(segment, n))
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
