"""Changes that many faults are: another result, another equation, other parameters."""

from collections.abc import Callable, Mapping

from conformance.faults.altered import Altered
from conformance.faults.fault import Change, FaultContext, with_parameters
from conformance.numerics.formats import Array
from conformance.oracle import Step


def rewritten(value: Callable[[Step], Array]) -> Change:
    """`value` of the step in place of its result."""
    return lambda step, _: Altered(step, value)


def function(f: Callable[[Array], Array]) -> Change:
    """f of the step's first input in place of its result."""
    return rewritten(lambda step: f(step.parents[0]))


handed_on = function(lambda x: x)
"""The step's first input in place of its result."""


def recast(equation: type[Step]) -> Change:
    """Another equation, with its own roundings."""
    return lambda step, _: step.recast(equation)


def other_parameters(change: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Change:
    """`change` of the step's parameters, by role, in place of them; those that it does not have stay."""
    return lambda step, _: with_parameters(step, **change(step.site.parameters))


def other_weight(change: Callable[[Array], Array]) -> Change:
    """`change` of the weight in its place."""
    return other_parameters(lambda p: {"weight": change(p["weight"])})


def with_parent(step: Step, place: FaultContext, name: str, parent: int = 0) -> Step | None:
    """The step reading another activation in place of a parent; None where that is not known, or is of another shape."""
    found = place.values.get(name)
    if found is None or found.shape != step.parents[parent].shape:
        return None
    return step.again(parents=(*step.parents[:parent], found, *step.parents[parent + 1 :]))
