"""The edits of a step of which mistakes are made: another operand, parameter, result or equation.

Each is, or returns, a `Change`, which gives None where the edit is impossible. An operand is a parent of the step, by its index; a
parameter is given by its role, and another activation by its name, as a function of the step.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np

from conformance.faults.changes import Altered, Rearranged, variance_of, with_slack_of_parent
from conformance.faults.fault import Change, FaultContext, parameters_of, with_parameters
from conformance.model.activation import Activation
from conformance.model.activations import layer_input
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step

Where = Callable[[Step], str | None]  # the name of an activation; None if there is none
S = TypeVar("S", bound=Step)


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


def variant(equation: type[S], **parts: Callable[[Any], object] | int) -> type[S]:
    """Return an equation with other intermediate results, functions of the step, or constants, and with the roundings of these."""
    changed = {name: cached_property(part) if callable(part) else part for name, part in parts.items()}
    return cast(type[S], type(equation.__name__, (equation,), changed))


def other_parameters(change: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Change:
    """Return the change that replaces the parameters of a step, by role; roles that `change` does not return are kept."""
    return lambda step, _: with_parameters(step, **change(step.site.parameters))


def other_weight(change: Callable[[Array], Array | None]) -> Change:
    """Return the change that replaces the weight of a step by `change(weight)`, where it is of the same shape."""
    return parameter("weight", lambda w, _: change(w))


def multiplied(step: Step, factor: float) -> Step:
    """Return the step with its result times a factor; it may be rounded, where it may be subnormal, before the multiplication."""

    def rounded(altered: Altered, arithmetic: Arithmetic) -> Array:
        before, after = (arithmetic.storage.rounding_variance(x) for x in (altered.inner.value, altered.value))
        return np.maximum(factor**2 * before - after, 0.0)

    return Altered(step, lambda inner: factor * inner.value, rounded)


def capped(step: Step, square: float) -> Step:
    """Return the step with the result tanh(k y) / k for k² = `square`, which a few more operations round."""
    k = square**0.5
    return step if k == 0.0 else Altered(step, lambda inner: np.tanh(k * inner.value) / k, few_roundings)


def few_roundings(altered: Altered, arithmetic: Arithmetic) -> Array:
    """Return the variance of a few more roundings, of numbers no larger than the larger of both results."""
    larger = np.maximum(np.abs(altered.value), np.abs(altered.inner.value))
    return as_array(4.0 * arithmetic.storage.rounding_variance(larger))


def reversed_features(step: Step, _: FaultContext) -> Step:
    """Return the step with the features of its result, and their rounding errors, in reverse order."""
    return Rearranged(step, lambda x: x[..., ::-1])


def operand(f: Callable[[Array, Step], Array | None], parent: int = -1) -> Change:
    """Return the change that replaces a parent x by `f(x, step)`."""

    def change(step: Step, _: FaultContext) -> Step | None:
        x = f(step.parents[parent], step)
        return None if x is None else with_operand(step, x, parent)

    return change


def operands(f: Callable[[Step], tuple[Array, ...]]) -> Change:
    """Return the change that replaces all parents."""
    return lambda step, _: step.replaced(parents=f(step))


def with_operand(step: Step, x: Array, parent: int = 0) -> Step:
    """Return the step with x in place of a parent."""
    at = parent % len(step.parents)
    return step.replaced(parents=(*step.parents[:at], x, *step.parents[at + 1 :]))


def with_computed(step: Step, given: Step, parent: int = 0) -> Step:
    """Return the step with the result of the step `given`, with its rounding errors, in place of a parent."""
    return with_slack_of_parent(with_operand(step, given.value, parent), lambda _, a: variance_of(given, a), parent)


def in_place_of(step: Step, other: Callable[[Step], Step], placed: Callable[[Array], Array] = lambda x: x) -> Step:
    """Return the step with the result and the rounding errors of another step, `other(step)`, each in its place by `placed`.

    The other step is that of the step as further faults change it.
    """
    return Altered(
        step,
        lambda inner: placed(other(inner).value),
        lambda altered, arithmetic: placed(variance_of(other(altered.inner), arithmetic)),
    )


def reads(where: Where, parent: int = 0, read: Callable[[Array], Array] = lambda x: x) -> Change:
    """Return the change by which a step reads another activation in place of a parent; None unless it has the same shape."""

    def change(step: Step, context: FaultContext) -> Step | None:
        other = context.values.get(where(step) or "")
        if other is None or len(step.parents) <= parent or read(other).shape != step.parents[parent].shape:
            return None
        return with_operand(step, read(other), parent)

    return change


def parameter(role: str, f: Callable[[Array, Step], Array | None]) -> Change:
    """Return the change that replaces a parameter w by `f(w, step)`, where it is of the same shape."""

    def change(step: Step, _: FaultContext) -> Step | None:
        w = step.site.parameters.get(role)
        other = None if w is None else f(w, step)
        return with_parameters(step, **{role: other}) if w is not None and other is not None and other.shape == w.shape else None

    return change


def has_parameters_of(where: Where) -> Change:
    """Return the change by which a step has the parameters of another; None unless they are others, of the same shapes."""

    def change(step: Step, context: FaultContext) -> Step | None:
        parameters = parameters_of(context, where(step) or "", step)
        pairs = [] if parameters is None else [(parameters[n], p) for n, p in step.site.parameters.items()]
        same = all(other is own or np.array_equal(other, own) for other, own in pairs)
        return None if parameters is None or same else with_parameters(step, **parameters)

    return change


def in_layer(name: str) -> Where:
    """Return where the activation `name` of the step's layer is; the layer's input if `name` is empty."""

    def where(step: Step) -> str | None:
        own = step.site.activation.layer
        return None if own is None else f"encoder.layer.{own}.{name}" if name else layer_input(own)

    return where


def beside(name: str) -> Where:
    """Return where the activation `name` of the step's own module is, such as the key beside the query."""
    return lambda step: f"{step.site.activation.name.rpartition('.')[0]}.{name}"


def last_hidden_state(step: Step) -> str:
    """Return where the output of the last layer is."""
    return layer_input(step.site.architecture.num_hidden_layers)


def kept_share(step: Step) -> float:
    """Return the share 1 − p of elements that dropout keeps; that of BERT, 0.9, if the network drops none, or all."""
    p = step.site.architecture.hidden_dropout_prob
    return 1.0 - p if 0.0 < p < 1.0 else 0.9


def copied_from(table: Mapping[str, Activation], name: str) -> str:
    """Return the activation of which `name` is a copy, such as the product before a dropout, or `name` itself."""
    while name in table and table[name].kind == "copy":
        (name,) = table[name].parents
    return name
