"""Errors of one activation, grouped by their correlation, as they are propagated from a step to the steps that read its result.

Errors of different elements are mostly independent, and the variance of their sum is then the sum of their variances. Two kinds of
errors are correlated, and a step that sums many of them has to take this into account: an error shared by a whole row, and errors
of different positions that are mixtures of the same independent errors.
"""

from dataclasses import dataclass, replace

import numpy as np

from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property


@dataclass(frozen=True)
class Mixture:
    """Errors of positions that are mixtures of the same independent errors: e_i = Σ_j w_ij ε_j, with separate weights per head.

    Each e_i has the variance Σ_j w_ij² v_j, but the variance of a sum over positions is not the sum of these variances. With
    factors x_i,

        Σ_i x_i e_i = Σ_j (Σ_i x_i w_ij) ε_j,    of variance Σ_j (Σ_i x_i w_ij)² v_j

    This variance exceeds the sum of variances by a factor of up to the number of positions, which is reached if all positions have
    the same weights and all factors the same sign. It is the diagonal of J V Jᵀ, where J is the product of the Jacobians of both
    steps (JCGM 100:2008, *Guide to the expression of uncertainty in measurement*, section 5.2): all factors of an error ε_j are
    summed before they are squared.

    Attributes:
        weights: w, (B, h, S, S').
        variance: v, (B, S', H), with the heads concatenated along the last axis.
    """

    weights: Array
    variance: Array

    @cached_property
    def of_positions(self) -> Array:
        """The variance of each e_i, (B, S, H)."""
        (batch, heads, length, _), (*_, others, width) = self.weights.shape, self.variance.shape
        apart = self.variance.reshape(batch, others, heads, -1).swapaxes(1, 2)
        return (np.square(self.weights) @ apart).swapaxes(1, 2).reshape(batch, length, width)

    def summed(self, factors: Array) -> Array:
        """Return the variance of Σ e_i x_iᵀ over all positions of all sequences, (H, N), for the factors x, (B, S, N)."""
        heads, width = self.weights.shape[1], factors.shape[-1]
        total = np.zeros((heads, self.variance.shape[-1] // heads, width), like=factors)
        for weights, variance, x in zip(self.weights, self.variance, factors, strict=True):  # One sequence at a time saves memory.
            reached = weights.swapaxes(-1, -2) @ x
            total += variance.T.reshape(heads, -1, len(variance)) @ np.square(reached, out=reached)
        return total.reshape(-1, width)


@dataclass(frozen=True)
class RowError:
    """One error η of variance 1 for each row, which every element of the row contains: e_i = x_i + a_i η.

    The row's independent errors x may themselves be what η is composed of. A softmax of scores with the errors ε has
    e_i = p_i (ε_i − Σ_j p_j ε_j): with x_i = p_i ε_i and η = −Σ_j p_j ε_j / s, the score of a key with most of the weight moves
    all other probabilities alike, and its own hardly. For factors R_i, with k_i = Cov(x_i, η),

        Var Σ_i R_i e_i = Σ_i R_i² Var x_i + (Σ_i R_i a_i)² + 2 (Σ_i R_i a_i) (Σ_i R_i k_i)

    Attributes:
        effect: a, of the activation's shape.
        covariance: k, of the activation's shape; 0 if η is independent of x.
    """

    effect: Array
    covariance: Array | float = 0.0

    @property
    def variance(self) -> Array:
        """What the error adds to the variance of each element, a² + 2 a k."""
        return as_array(self.effect * (self.effect + 2.0 * self.covariance))

    def after(self, right: Array) -> Array:
        """Return what the error adds to the variance of each element of e R, for e (..., M, K) and R (..., K, N)."""
        moved = self.effect @ right
        return as_array(moved * (moved + 2.0 * (self.covariance @ right if np.ndim(self.covariance) else self.covariance)))


@dataclass(frozen=True)
class CorrelatedErrors:
    """The errors of one activation.

    Attributes:
        independent: elementwise variance of the errors that are independent between elements; 0 if there are none.
        shared: the errors that are shared by a row.
        mixtures: the errors of positions that are mixtures of the same independent errors.
    """

    independent: Array | float = 0.0
    shared: tuple[RowError, ...] = ()
    mixtures: tuple[Mixture, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there are any errors."""
        return bool(self.shared or self.mixtures or np.ndim(self.independent) or self.independent)

    @property
    def variance(self) -> Array:
        """The elementwise variance of the sum of all errors."""
        each = (*(error.variance for error in self.shared), *(mixture.of_positions for mixture in self.mixtures))
        return as_array(np.maximum(sum(each, start=as_array(self.independent)), 0.0))

    def scaled(self, factor: Array | float) -> "CorrelatedErrors":
        """Return the errors multiplied by a factor, elementwise."""
        if isinstance(factor, float) and factor == 1.0:
            return self
        shared = tuple(RowError(factor * error.effect, factor * error.covariance) for error in self.shared)
        mixed = sum((mixture.of_positions for mixture in self.mixtures), start=as_array(self.independent))
        return CorrelatedErrors(factor**2 * mixed, shared)

    @property
    def recomputed(self) -> "CorrelatedErrors":
        """The errors of the same result where a backward pass computes it again from what the forward pass kept of each row.

        FlashAttention's backward pass (Dao et al. 2022, algorithm 4) computes exp(s − L) from scores s with other rounding errors
        than those that the row's log-sum L contains. What a row shares is then independent of the errors of its elements, which do
        not cancel even where one key has all the weight.
        """
        return replace(self, shared=tuple(replace(error, covariance=0.0) for error in self.shared))

    def in_rows(self, right: Array) -> "CorrelatedErrors":
        """Return the errors of e R for the errors e, (..., M, K), whose rows lie along the last axis, and R (..., K, N)."""
        independent = replace(self, shared=()).variance @ np.square(right)
        return CorrelatedErrors(np.maximum(sum((error.after(right) for error in self.shared), start=independent), 0.0))

    def __add__(self, other: "CorrelatedErrors") -> "CorrelatedErrors":
        """Return the sum of both errors, which are treated as uncorrelated."""
        independent = self.independent + other.independent
        return CorrelatedErrors(independent, self.shared + other.shared, self.mixtures + other.mixtures)


def mixed(weights: Array, errors: CorrelatedErrors, of: Array) -> CorrelatedErrors:
    """Return the errors of the product of `weights`, (B, h, S, S'), with each head of the array `of`, (B, S', H)."""
    return CorrelatedErrors(mixtures=(Mixture(weights, np.broadcast_to(errors.variance, of.shape)),)) if errors.any else errors


def row_mixed(slope: Array, outer: Array, inner: Array, variance: Array) -> CorrelatedErrors:
    """Return the errors e = diag(d) ε + a (b · ε) along the last axis, for independent errors ε.

    Args:
        slope: d.
        outer: a.
        inner: b.
        variance: elementwise variance v of ε, of which η = b · ε has Σ b² v.
    """
    reached = inner * variance
    deviation = np.sqrt((inner * reached).sum(-1, keepdims=True))
    covariance = slope * reached / np.where(deviation > 0.0, deviation, 1.0)
    return CorrelatedErrors(np.square(slope) * variance, (RowError(outer * deviation, covariance),))
