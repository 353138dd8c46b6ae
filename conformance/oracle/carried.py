"""Errors of one activation by what they have in common, as they are carried from a step to those that read it.

Errors of different elements are mostly independent, and the variance of a sum is then the sum of the variances. Two kinds are not,
and a step that sums many of them has to know: one error that a whole row has, and mixtures of the same errors at every position.
"""

from dataclasses import dataclass

import numpy as np

from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property


@dataclass(frozen=True)
class Mixture:
    """Errors of positions that are mixtures of the same independent errors: e_i = Σ_j w_ij ε_j, each head with weights of its own.

    Each e_i has the variance Σ_j w_ij² v_j, but a sum over the positions does not have the sum of these. With factors x_i

        Σ_i x_i e_i = Σ_j (Σ_i x_i w_ij) ε_j,    of variance Σ_j (Σ_i x_i w_ij)² v_j

    which is up to as many times larger as there are positions, where all attend alike and the factors have one sign. It is the
    diagonal of J V Jᵀ with J the product of both steps' Jacobians (JCGM 100:2008, *Guide to the expression of uncertainty in
    measurement*, section 5.2): three matrices are associated the other way, so that an error is met by all that multiplies it.

    Attributes:
        weights: w, (B, h, S, S').
        variance: v, (B, S', H), each head's features together.
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
        """Variance of Σ e_i x_iᵀ over all positions of all sequences, x = `factors` (B, S, N): (H, N)."""
        heads, width = self.weights.shape[1], factors.shape[-1]
        total = np.zeros((heads, self.variance.shape[-1] // heads, width))
        for weights, variance, x in zip(self.weights, self.variance, factors, strict=True):  # of one sequence at a time: (h, S', N)
            reached = weights.swapaxes(-1, -2) @ x
            total += variance.T.reshape(heads, -1, len(variance)) @ np.square(reached, out=reached)
        return total.reshape(-1, width)


@dataclass(frozen=True)
class Errors:
    """Of one activation.

    Attributes:
        independent: variance of those that elements have for themselves; 0 for none.
        shared: one error a row each, as what a standard deviation of it moves, of the activation's shape.
        mixtures: those that positions have in common.
    """

    independent: Array | float = 0.0
    shared: tuple[Array, ...] = ()
    mixtures: tuple[Mixture, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.shared or self.mixtures or np.ndim(self.independent) or self.independent)

    @property
    def variance(self) -> Array:
        """Of each element, all together."""
        each = (*map(np.square, self.shared), *(mixture.of_positions for mixture in self.mixtures))
        return sum(each, start=np.asarray(self.independent))

    def __add__(self, other: "Errors") -> "Errors":
        """Both, as if they had nothing in common."""
        independent = self.independent + other.independent
        return Errors(independent, self.shared + other.shared, self.mixtures + other.mixtures)


def mixed(weights: Array, errors: Errors, of: Array) -> Errors:
    """Errors of an array `of` (B, S', H), each head of which is mixed with weights (B, h, S, S')."""
    return Errors(mixtures=(Mixture(weights, np.broadcast_to(errors.variance, of.shape)),)) if errors.any else errors
