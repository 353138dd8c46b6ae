"""Changes of a step that several faults share: another result, equation, parameters or parents, and errors that come with them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from conformance.faults.altered import Altered, with_slack
from conformance.faults.fault import Change, FaultContext, with_parameters
from conformance.model.activation import Activation
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

S = TypeVar("S", bound=Step)


def kept_share(step: Step) -> float:
    """Return the share 1 − p of elements that dropout keeps; that of BERT, 0.9, if the network drops none, or all."""
    p = step.site.architecture.hidden_dropout_prob
    return 1.0 - p if 0.0 < p < 1.0 else 0.9


def rewritten(value: Callable[[Step], Array]) -> Change:
    """Return the change that replaces the result of a step by `value(step)`."""
    return lambda step, _: Altered(step, value)


def rewritten_equation(equation: type[S], value: Callable[[S], Array]) -> Change:
    """Return the change that replaces the result of this equation by `value(step)`; it gives None for steps of another equation."""
    return lambda step, _: with_result(step, equation, value)


def with_result(step: Step, equation: type[S], value: Callable[[S], Array]) -> Step | None:
    """Return the step with the result `value(step)` in place of that of its equation; None if it is a step of another equation.

    Earlier changes of the result are applied to the new one, as far as they do not replace the result of the same equation.
    """
    if isinstance(step, Altered):
        inner = with_result(step.inner, equation, value)
        return None if inner is None else step.with_inner(inner)
    if not isinstance(step, equation):
        return None
    return Altered(step, lambda inner: value(inner) if isinstance(inner, equation) else inner.value)


def function(f: Callable[[Array], Array]) -> Change:
    """Return the change that replaces the result of a step by f of its first parent."""
    return rewritten(lambda step: f(step.parents[0]))


first_parent = function(lambda x: x)
"""The change that replaces the result of a step by its first parent."""


def recast(equation: type[Step]) -> Change:
    """Return the change that replaces the equation of a step, along with its rounding errors."""
    return lambda step, _: step.recast(equation)


def other_parameters(change: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Change:
    """Return the change that replaces the parameters of a step, by role; roles that `change` does not return are kept."""
    return lambda step, _: with_parameters(step, **change(step.site.parameters))


def other_weight(change: Callable[[Array], Array]) -> Change:
    """Return the change that replaces the weight of a step by `change(weight)`."""
    return other_parameters(lambda p: {"weight": change(p["weight"])})


def variance_of(step: Step, arithmetic: Arithmetic) -> Array:
    """Return the elementwise variance of a step's own rounding errors, deterministic ones taken as uniform within their bound."""
    own = step.roundings(arithmetic)
    return as_array(own.variance() + as_array(own.bound) ** 2 / 3.0)


def with_rounded_parent(step: Step, parent: int) -> Altered:
    """Return the step with a parent that may be rounded to storage."""

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        rounding = arithmetic.storage.rounding_variance(altered.inner.parents[parent])
        return altered.inner.jacobians()[parent].variance(rounding)

    return with_slack(step, slack)


def copied_from(table: Mapping[str, Activation], name: str) -> str:
    """Return the activation of which `name` is a copy, such as the product before a dropout, or `name` itself."""
    while name in table and table[name].kind == "copy":
        (name,) = table[name].parents
    return name


def with_stored_weight(step: Linear, weight: Array) -> Altered:
    """Return a linear layer with another weight, (O, I), which may be stored: errors of rounding it are added."""

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert isinstance(altered.inner, Linear)
        return variance_of_stored_weight(altered.inner.inputs, weight, arithmetic)

    return with_slack(with_parameters(step, weight=weight), slack)


def variance_of_stored_weight(inputs: Array, weight: Array, arithmetic: Arithmetic) -> Array:
    """Return the variance of the results, (…, O), that comes from rounding the weight, (O, I), to storage; inputs (…, I)."""
    return as_array(inputs**2 @ arithmetic.storage.rounding_variance(weight).T)


def with_parent(step: Step, context: FaultContext, name: str, parent: int = 0) -> Step | None:
    """Return the step with the activation `name` in place of a parent; None if it is not known or has another shape."""
    found = context.values.get(name)
    if found is None or found.shape != step.parents[parent].shape:
        return None
    return step.replaced(parents=(*step.parents[:parent], found, *step.parents[parent + 1 :]))
