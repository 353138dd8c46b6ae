"""A step whose result a fault rewrites."""

from collections.abc import Callable
from functools import partial

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.maps import LinearMap, Roundings, Source, identity
from conformance.oracle.step import Site

Slack = Callable[["Altered", Arithmetic], Array]  # elementwise variance, from the rewritten step and the arithmetic


class Altered(Step):
    """`after(inner)` in place of the inner step's result; errors travel and arise as in the inner step.

    Roundings are larger where the result is, in proportion of the ulps. `slack` is the variance of what the fault itself brings
    or leaves open, such as the rounding of a result that may or may not have been made.
    """

    def __init__(self, inner: Step, after: Callable[[Step], Array], slack: Slack | None = None) -> None:
        """Rewrite the result of `inner`."""
        super().__init__(inner.site, *inner.parents)
        self.inner, self.after, self.slack = inner, after, slack

    def again(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """The inner step again, rewritten in the same way."""
        return Altered(self.inner.again(site=site, parents=parents), self.after, self.slack)

    def recast(self, equation: type[Step]) -> Step:
        """Another inner equation, its result rewritten in the same way."""
        return Altered(self.inner.recast(equation), self.after, self.slack)

    @cached_property
    def value(self) -> Array:
        """The rewritten result."""
        return np.asarray(self.after(self.inner), np.float64)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """The inner step's."""
        return self.inner.jacobians()

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The inner step's, scaled where the result is larger, and the slack."""
        grid = np.sqrt(12.0 * arithmetic.storage.floor_variance)  # below it no rounding is counted, so that no ratio overflows
        actual, inner = (np.maximum(arithmetic.storage.ulp(x), grid) for x in (self.value, self.inner.value))
        own = self.inner.roundings(arithmetic).scaled(np.maximum(actual / inner, 1.0))
        if self.slack is None:
            return own
        return Roundings((*own.sources, Source(self.slack(self, arithmetic), identity())), own.bound)


class Rearranged(Altered):
    """The inner step's elements in other places, their roundings with them; `moved` takes an array to the one rearranged."""

    def __init__(self, inner: Step, moved: Callable[[Array], Array]) -> None:
        """Rearrange the result of `inner`."""
        super().__init__(inner, lambda step: moved(step.value))
        self._moved = moved

    def again(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> Step:
        """The inner step again, rearranged in the same way."""
        return Rearranged(self.inner.again(site=site, parents=parents), self._moved)

    def recast(self, equation: type[Step]) -> Step:
        """Another inner equation, its result rearranged in the same way."""
        return Rearranged(self.inner.recast(equation), self._moved)

    def _back(self, w: Array) -> Array:
        """The inverse of the rearrangement."""
        shape = self.inner.value.shape
        came_from = self._moved(np.arange(w.size, dtype=np.float64).reshape(shape)).astype(np.int64)
        back = np.empty(w.size)
        back[came_from.ravel()] = w.ravel()
        return back.reshape(shape)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """The inner step's, then the rearrangement."""
        return tuple(LinearMap(partial(self._spread, j), partial(self._pulled, j)) for j in self.inner.jacobians())

    def _spread(self, inner: LinearMap, v: Array) -> Array:
        return self._moved(np.broadcast_to(inner.variance(v), self.inner.value.shape))

    def _pulled(self, inner: LinearMap, w: Array) -> Array:
        return inner.adjoint(self._back(w))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The inner step's, each where its element is now."""
        own, shape = self.inner.roundings(arithmetic), self.inner.value.shape
        variance, bound = (self._moved(np.broadcast_to(x, shape)) for x in (own.variance(), np.asarray(own.bound)))
        return Roundings((Source(variance, identity()),), bound)
