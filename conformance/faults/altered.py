"""Steps whose result is changed by a fault."""

from collections.abc import Callable
from functools import partial

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
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
