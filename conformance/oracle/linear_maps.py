"""Linear maps: the Jacobians that propagate errors through the network.

A map J takes an error e of a step's input to the error J e of its result. The judge needs J in two forms, and never as a matrix:

`variance(v)`  the diagonal of J diag(v) Jᵀ: the elementwise variance of the result if input errors are independent and have the
               elementwise variance v;
`adjoint(w)`   Jᵀ w: the projection of the result's noise on a direction w has the variance Σ v · (Jᵀ w)², with correlations.

All maps are of first order in the error (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 1.6).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from conformance.numerics.formats import Array, Single, as_array
from conformance.numerics.memo import cached_property, once_an_array

Matrix = TypeVar("Matrix", Array, Single)


@dataclass(frozen=True)
class LinearMap:
    """A Jacobian J, given by its two actions.

    Attributes:
        variance: maps v to the diagonal of J diag(v) Jᵀ.
        adjoint: maps w to Jᵀ w.
        slope: the diagonal of J if J has no other elements, else None.
    """

    variance: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]
    slope: Array | float | None = None

    def then_times(self, factor: Array) -> "LinearMap":
        """Return diag(factor) J."""
        return LinearMap(lambda v: factor**2 * self.variance(v), lambda w: self.adjoint(factor * w))


def identity() -> LinearMap:
    """Return J = 1."""
    return LinearMap(lambda v: v, lambda w: w, 1.0)


def nothing(result: Array, parent: Array) -> LinearMap:
    """Return J = 0, for a result that does not depend on a parent."""
    return LinearMap(lambda _: np.zeros_like(result), lambda _: np.zeros_like(parent))


def diagonal(slope: Array) -> LinearMap:
    """Return J = diag(slope), the Jacobian of a pointwise function with this derivative."""
    return LinearMap(lambda v: slope**2 * v, lambda w: slope * w, slope)


def summed(direction: Array) -> LinearMap:
    """Return J e = Σ direction · e, whose result is a scalar."""
    return LinearMap(lambda v: as_array((direction**2 * v).sum()), lambda w: direction * w)


def of_scalar(direction: Array) -> LinearMap:
    """Return J e = direction · e for a scalar e."""
    return LinearMap(lambda v: direction**2 * v, lambda w: as_array((direction * w).sum()))


def shared_by_row(direction: Array) -> LinearMap:
    """Return J e = e · direction, for one error e per row (last axis of length 1).

    It describes the error of a mean, a norm or a sum, which affects a whole row.
    """
    return LinearMap(lambda v: direction**2 * v, lambda w: (direction * w).sum(-1, keepdims=True))


def matrix(weight: Array) -> LinearMap:
    """Return J e = e Wᵀ over the last axis, for a weight W of shape (out, in)."""
    return LinearMap(lambda v: rows_times(v, _squared(weight).T), lambda w: rows_times(w, weight))


_squared = once_an_array(np.square)


def rows_times(x: Matrix, right: Matrix) -> Matrix:
    """Return x @ right for (..., K) and (K, N), computed as a single matrix product; NumPy would compute one per sequence."""
    return (x.reshape(-1, x.shape[-1]) @ right).reshape(*x.shape[:-1], right.shape[-1])


@dataclass(frozen=True)
class Source:
    """Independent rounding errors of elementwise variance `variance`, and the map from them to the result of the step.

    Attributes:
        variance: elementwise variance of the errors.
        to_result: map from the errors to the result.
        direction: effect on a row of its one shared error (`shared_by_row`), given where a later step may sum over the row.
    """

    variance: Array
    to_result: LinearMap
    direction: Array | None = None

    def scaled(self, factor: Array) -> "Source":
        """Return the errors of a result that is multiplied by `factor`, elementwise."""
        direction = None if self.direction is None else factor * self.direction
        return Source(self.variance, self.to_result.then_times(factor), direction)


@dataclass(frozen=True)
class Roundings:
    """The effect of a step's own rounding errors on its result.

    Attributes:
        sources: independent random errors.
        bound: elementwise largest deterministic error (function errors and rounded constants); 0 if there is none.
    """

    sources: tuple[Source, ...]
    bound: Array | float = 0.0

    @cached_property
    def is_bounded(self) -> bool:
        """Whether any element has a deterministic error."""
        return bool(np.any(self.bound))

    def variance(self) -> Array:
        """Return the elementwise variance of the result."""
        first, *rest = (s.to_result.variance(s.variance) for s in self.sources)
        return sum(rest, start=first)

    def scaled(self, factor: Array) -> "Roundings":
        """Return the errors of a result that is multiplied by a nonnegative `factor`, elementwise."""
        return Roundings(tuple(s.scaled(factor) for s in self.sources), factor * self.bound)

    def twice(self) -> "Roundings":
        """Return the errors of two independent computations: variances and bounds are doubled."""
        return Roundings(tuple(replace(s, variance=2.0 * s.variance) for s in self.sources), 2.0 * self.bound)
