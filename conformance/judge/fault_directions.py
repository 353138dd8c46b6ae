"""A direction: a fault at a step of a segment, and how it changes the segment's result."""

from dataclasses import dataclass, replace

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

    @cached_property
    def faulty(self) -> Segment | None:
        """The segment with the fault, its parameter at the usual value or at `share`; None if it changes nothing."""
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
        return None if self.faulty is None else self.faulty.value - self.base.value

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
