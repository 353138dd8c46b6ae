"""Changes of a step that several faults share: another result, equation, parameters or parents, and errors that come with them."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from conformance.model.activation import STATES_NAME
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle import Network, Step
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity
from conformance.oracle.propagation import propagated
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


def run(
    network: Network,
    names: Iterable[str],
    values: Mapping[str, Array],
    edit: Callable[[Step], Step] = lambda step: step,
    result: Callable[[Step], Array] = lambda step: step.value,
) -> dict[str, Step] | None:
    """Return the steps of these names, each as `edit` returns it, computed from the `result` of the ones before and known values.

    None is returned where a parent is not known. The encoder's states, which are given, are computed by the network.
    """
    known, steps = dict(values), dict[str, Step]()
    for name in names:
        parents = network.table[name].parents
        known |= {parent: network.step(parent).value for parent in parents if parent == STATES_NAME}
        if any(parent not in known for parent in parents):
            return None
        steps[name] = edit(network.step(name, *(known[parent] for parent in parents)))
        known[name] = result(steps[name])
    return steps


def errors_of(network: Network, steps: Mapping[str, Step], stored: Mapping[str, Array] | None = None) -> Slack:
    """Return the variance of the last of these steps by the rounding errors of all, and of the values `stored` that they read."""

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        entry = {name: arithmetic.storage.rounding_variance(x) for name, x in (stored or {}).items()}
        return propagated(network.table, steps, entry, lambda name: steps[name].roundings(arithmetic))

    return slack
