"""Linear maps: the Jacobians along which errors travel through the network.

A map J takes an error e of a step's input to the error J e of its result. The judge needs it in two forms, never as a matrix:

`variance(v)`  the diagonal of J diag(v) Jᵀ: elementwise variance out, for independent errors of elementwise variance v in;
`adjoint(w)`   Jᵀ w: with it the noise's own projection on a direction w has the variance Σ v · (Jᵀ w)², correlations and all.

First order in the error throughout (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 1.6).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import once_an_array

Matrix = TypeVar("Matrix", Array, Single)


@dataclass(frozen=True)
class LinearMap:
    """A Jacobian by its two actions."""

    variance: Callable[[Array], Array]
    adjoint: Callable[[Array], Array]

    def then_times(self, factor: Array) -> "LinearMap":
        """diag(factor) J, for a factor that is not negative."""
        return LinearMap(lambda v: factor**2 * self.variance(v), lambda w: self.adjoint(factor * w))


def identity() -> LinearMap:
    """J = 1."""
    return LinearMap(lambda v: v, lambda w: w)


def diagonal(slope: Array) -> LinearMap:
    """J = diag(slope), for a pointwise function with that derivative."""
    return LinearMap(lambda v: slope**2 * v, lambda w: slope * w)


def shared_by_row(direction: Array) -> LinearMap:
    """J e = e · direction for one error e a row (last axis of length 1): a mean, a norm or a sum got wrong moves a whole row."""
    return LinearMap(lambda v: direction**2 * v, lambda w: (direction * w).sum(-1, keepdims=True))


def matrix(weight: Array) -> LinearMap:
    """J e = e Wᵀ over the last axis; weight is (out, in)."""
    return LinearMap(lambda v: rows_times(v, _squared(weight).T), lambda w: rows_times(w, weight))


_squared = once_an_array(np.square)


def rows_times(x: Matrix, right: Matrix) -> Matrix:
    """The product x @ right of (..., K) and (K, N), as one matrix product: NumPy would make one a sequence."""
    return (x.reshape(-1, x.shape[-1]) @ right).reshape(*x.shape[:-1], right.shape[-1])


@dataclass(frozen=True)
class Source:
    """Independent rounding errors of elementwise variance `variance`, and the map that takes them to the step's result.

    Attributes:
        direction: of one error a row (`shared_by_row`), how it moves that row, where a later step may sum over it.
    """

    variance: Array
    to_result: LinearMap
    direction: Array | None = None

    def scaled(self, factor: Array) -> "Source":
        """Those of a result whose errors are `factor` times larger, elementwise."""
        direction = None if self.direction is None else factor * self.direction
        return Source(self.variance, self.to_result.then_times(factor), direction)


@dataclass(frozen=True)
class Roundings:
    """What rounding a step's own arithmetic does to its result.

    Attributes:
        sources: independent random errors.
        bound: largest deterministic error, elementwise (function errors and rounded constants); or 0.
    """

    sources: tuple[Source, ...]
    bound: Array | float = 0.0

    def variance(self) -> Array:
        """Elementwise variance of the result."""
        first, *rest = (s.to_result.variance(s.variance) for s in self.sources)
        return sum(rest, start=first)

    def scaled(self, factor: Array) -> "Roundings":
        """Those of a result whose errors are `factor` times larger, elementwise."""
        return Roundings(tuple(s.scaled(factor) for s in self.sources), factor * self.bound)

    def twice(self) -> "Roundings":
        """Those of two independent computations: variances and bounds double."""
        return Roundings(tuple(replace(s, variance=2.0 * s.variance) for s in self.sources), 2.0 * self.bound)
