"""A direction: a fault at a step of a segment, and how it changes the segment's result."""

from dataclasses import dataclass

import numpy as np

from conformance.faults import Fault, FaultContext, Parameter
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
