"""Changes of a step that several faults share: another result, equation, parameters or parents, and errors that come with them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from conformance.faults.fault import Change, FaultContext, with_parameters
from conformance.model.activation import Activation
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.linear import Linear
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity
from conformance.oracle.step import Site

Slack = Callable[["Altered", Arithmetic], Array]  # The elementwise variance, from the altered step and the arithmetic.


class Altered(Step):
    """A step with the result `after(inner)`; errors are propagated, and rounding errors arise, as in the inner step.

    Where the changed result is larger than that of the inner step, rounding errors are scaled by the ratio of the ulps.

    Attributes:
        inner: the correct step.
        after: function from the inner step to the changed result.
        slack: elementwise variance of additional errors that the fault makes possible, such as a rounding of the result that a
            candidate may or may not perform; None if there are none.
    """

    def __init__(self, inner: Step, after: Callable[[Step], Array], slack: Slack | None = None) -> None:
        """Initialize the step with the inner step, the change of its result and the variance of additional errors."""
        super().__init__(inner.site, *inner.parents)
        self.inner, self.after, self.slack = inner, after, slack

    def replaced(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """Return the same change of the inner step at another site or with other parents."""
        return self.with_inner(self.inner.replaced(site=site, parents=parents))

    def recast(self, equation: type[Step]) -> Step:
        """Return the same change of a step with another equation."""
        return self.with_inner(self.inner.recast(equation))

    def with_inner(self, inner: Step) -> Step:
        """Return the same change of another inner step."""
        return Altered(inner, self.after, self.slack)

    @cached_property
    def value(self) -> Array:
        """The changed result, in float64."""
        return as_array(self.after(self.inner), np.float64)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobians of the inner step."""
        return self.inner.jacobians()

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the inner step, scaled where the result is larger, and the slack."""
        grid = np.sqrt(12.0 * arithmetic.storage.floor_variance)  # A lower limit of the ulps prevents an overflow of the ratio.
        actual, inner = (np.maximum(arithmetic.storage.ulp(x), grid) for x in (self.value, self.inner.value))
        own = self.inner.roundings(arithmetic).scaled(np.maximum(actual / inner, 1.0))
        if self.slack is None:
            return own
        return Roundings((*own.sources, Source(self.slack(self, arithmetic), identity())), own.bound)


def allows_errors(step: Step) -> bool:
    """Return whether a step is changed by a fault that makes additional errors possible."""
    return isinstance(step, Altered) and (step.slack is not None or allows_errors(step.inner))


def with_slack(step: Step, slack: Slack) -> Altered:
    """Return the step with additional errors of this variance and the same result."""
    return Altered(step, lambda inner: inner.value, slack)


class Rearranged(Altered):
    """A step with the elements of the inner step in other places, each with its rounding errors; elements may occur repeatedly."""

    def __init__(self, inner: Step, rearrange: Callable[[Array], Array]) -> None:
        """Initialize the step with the inner step and the function that rearranges an array of the shape of its result."""
        super().__init__(inner, lambda step: rearrange(step.value))
        self._rearrange = rearrange

    def with_inner(self, inner: Step) -> Step:
        """Return the same rearrangement of another inner step."""
        return Rearranged(inner, self._rearrange)

    def _back(self, w: Array) -> Array:
        """Return, for each element of the inner step, the sum of w over the places to which it was moved."""
        shape = self.inner.value.shape
        came_from = self._rearrange(np.arange(w.size, dtype=np.float64).reshape(shape)).astype(np.int64)
        return as_array(np.bincount(came_from.ravel(), w.ravel(), w.size).reshape(shape), np.float64)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobians of the inner step, each followed by the rearrangement."""
        return tuple(LinearMap(partial(self._spread, j), partial(self._pulled, j)) for j in self.inner.jacobians())

    def _spread(self, inner: LinearMap, v: Array) -> Array:
        return self._rearrange(np.broadcast_to(inner.variance(v), self.inner.value.shape))

    def _pulled(self, inner: LinearMap, w: Array) -> Array:
        return inner.adjoint(self._back(w))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the inner step, rearranged with the elements."""
        own, shape = self.inner.roundings(arithmetic), self.inner.value.shape
        variance, bound = (self._rearrange(np.broadcast_to(x, shape)) for x in (own.variance(), as_array(own.bound)))
        return Roundings((Source(variance, identity()),), bound)


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


def with_slack_of_parent(step: Step, slack: Slack, parent: int = 0) -> Altered:
    """Return the step with additional errors of this variance in a parent, and the same result."""
    return with_slack(step, lambda altered, arithmetic: altered.inner.jacobians()[parent].variance(slack(altered, arithmetic)))


def with_rounded_parent(step: Step, parent: int) -> Altered:
    """Return the step with a parent that may be rounded to storage."""
    return with_slack_of_parent(step, lambda altered, a: a.storage.rounding_variance(altered.inner.parents[parent]), parent)


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
