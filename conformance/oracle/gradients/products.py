"""Gradients of linear layers, of attention scores and of the attention context.

w is the gradient of L with respect to the result of the forward step.

Gradients of relative positions in scores are with respect to queries, keys, distance embeddings and their table.
"""

from dataclasses import replace

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance, product_in_single, weight_operand
from conformance.oracle.bilinear import Factor, Product, ScaledProduct
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.embeddings import DistanceLookup
from conformance.oracle.gradients.sums import LookupGradient, over_calls
from conformance.oracle.linear_maps import LinearMap, Matrix, Roundings, Source, rows_times
from conformance.oracle.step import Step, elementwise_roundings


class LinearBackward(Step, kinds=("linear_backward",)):
    """∂L/∂x = w W; w (..., O), W (O, I), result (..., I)."""

    @cached_property
    def _accumulation(self) -> Accumulation:
        weight = self.site.parameters["weight"]
        return Accumulation(self.parents[0], weight, right_operand=lambda: weight_operand(weight))

    @cached_property
    def value(self) -> Array:
        """The gradient."""
        return self._accumulation.product

    def effect_of(self, *errors: Array | Single) -> Single:
        """Return e W, in float32: errors are small, so float32 is accurate enough."""
        return product_in_single(errors[0], weight_operand(self.site.parameters["weight"]))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map Wᵀ."""
        weight = self.site.parameters["weight"]
        return (LinearMap(lambda v: rows_times(v, weight**2), lambda u: rows_times(u, weight.T)),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors derived in `oracle.accumulation`, with the sum taken over the output features."""
        return elementwise_roundings(self._variance(self._accumulation.squares, arithmetic))

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of terms that are added in a random order."""
        return elementwise_roundings(self._variance(self._accumulation.in_random_order, arithmetic))

    def _variance(self, squares: Array, arithmetic: Arithmetic) -> Array:
        """Return the variance of the errors, given Σ_k s_k²."""
        return accumulation_variance(squares, self._accumulation.product, self.parents[0].shape[-1], arithmetic)


class FirstTokenLinearBackward(LinearBackward, kinds=("first_token_linear_backward",)):
    """∂L/∂x = w W at the first token, 0 elsewhere; w (B, O), result (B, S, I)."""

    couples_positions = True

    def _placed(self, first: Matrix) -> Matrix:
        whole = np.zeros((len(first), self.site.batch.length, first.shape[-1]), first.dtype, like=first)
        whole[:, 0] = first
        return whole

    @cached_property
    def value(self) -> Array:
        """The gradient."""
        return self._placed(self._accumulation.product)

    def effect_of(self, *errors: Array | Single) -> Single:
        """Return e W at the first token, 0 elsewhere, in float32."""
        return self._placed(super().effect_of(*errors))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that is Wᵀ at the first token and 0 at all others."""
        (inner,) = super().jacobians()
        return (LinearMap(lambda v: self._placed(inner.variance(v)), lambda u: inner.adjoint(u[:, 0])),)

    def _variance(self, squares: Array, arithmetic: Arithmetic) -> Array:
        """Return the variance of the first token's errors; at the other tokens, only the format's floor variance is left."""
        return np.maximum(self._placed(super()._variance(squares, arithmetic)), arithmetic.storage.floor_variance)


class _SumOverTokens(Product):
    """A product whose terms are those of the tokens."""

    def accumulated(self, arithmetic: Arithmetic) -> Array:
        """Return the elementwise variance of the rounding errors of the sum over tokens.

        In native arithmetic, each term is rounded to storage before it is added: the sum of the squares of the terms times u²/3.
        """
        found = super().accumulated(over_calls(arithmetic))
        if arithmetic.rounding != "native" or not arithmetic.is_mixed:
            return found
        left, right = (np.square(factor) for factor in self._factors)
        u2, floor = arithmetic.storage.unit_roundoff**2 / 3.0, arithmetic.storage.floor_variance
        return as_array(found + u2 * self._as_result(left @ right) + left.shape[-1] * floor)


class LinearGradient(_SumOverTokens, kinds=("linear_gradient",)):
    """∂L/∂W = wᵀ x, summed over all tokens; w (..., O), x (..., I), result (O, I)."""

    left, right = Factor(0, "rows", transposed=True), Factor(1, "rows")

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result; mixtures are summed over the tokens with the other factor."""
        summed = sum((mixture.summed(self.parents[1 - parent]) for mixture in errors.mixtures), start=np.zeros(()))
        return super().through(parent, replace(errors, mixtures=())) + CorrelatedErrors(
            summed if parent == self.left.parent else summed.T
        )


class FirstTokenLinearGradient(_SumOverTokens, kinds=("first_token_linear_gradient",)):
    """∂L/∂W = wᵀ x₀ with the first tokens x₀ of x; w (B, O), x (B, S, I), result (O, I)."""

    left, right = Factor(0, "rows", transposed=True), Factor(1, "first tokens")


class ScaledBackward(ScaledProduct):
    """The gradient of the scores with respect to one of their factors, which is scaled by c = 1/√d."""

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors of the product and of the scaling of w, which is a separate call before the product.

        The bound 2u |y| is the effect of rounding the constant 1/√d.
        """
        w, u = self.parents[0], arithmetic.accumulate.unit_roundoff
        scaled = u**2 / 3.0 * w**2 + arithmetic.call_rounding_variance(self.scale * w) / self.scale**2
        sources = (*elementwise_roundings(self.accumulated(arithmetic)).sources, Source(scaled, self.jacobians()[0]))
        return Roundings(sources, 2.0 * u * np.abs(self.value))


class ScoresBackwardQuery(ScaledBackward, kinds=("scores_backward_query",)):
    """∂L/∂q = w k / √d per head; w (B, h, S, S), k (B, S, H), result (B, S, H)."""

    left, right, result = Factor(0, "as it is"), Factor(1, "heads"), "heads"


class ScoresBackwardKey(ScaledBackward, kinds=("scores_backward_key",)):
    """∂L/∂k = wᵀ q / √d per head; w (B, h, S, S), q (B, S, H), result (B, S, H)."""

    left, right, result = Factor(0, "as it is", transposed=True), Factor(1, "heads"), "heads"


class ContextBackwardProbs(Product, kinds=("context_backward_probs",)):
    """∂L/∂p = w vᵀ per head; w (B, S, H), v (B, S, H), result (B, h, S, S)."""

    left, right = Factor(0, "heads"), Factor(1, "heads", transposed=True)


class ContextBackwardValue(Product, kinds=("context_backward_value",)):
    """∂L/∂v = pᵀ w per head; w (B, S, H), p (B, h, S, S), result (B, S, H)."""

    left, right, result = Factor(1, "as it is", transposed=True), Factor(0, "heads"), "heads"

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result; p may be computed again."""
        return super().through(parent, errors.recomputed if parent == self.left.parent else errors)


class QueryDistanceBackwardQuery(ScaledBackward, kinds=("query_distance_scores_backward_query",)):
    """∂L/∂q_i = Σ_j w_ij D_ij / √d; w (B, h, S, S), D (B, S, S, d), result (B, S, H)."""

    left, right, result = Factor(0, "by query"), Factor(1, "as it is"), "by token"


class QueryDistanceBackwardDistance(ScaledBackward, kinds=("query_distance_scores_backward_distance",)):
    """∂L/∂D_ij = Σ w_ij q_i / √d over heads; w (B, h, S, S), q (B, S, H), result (B, S, S, d)."""

    left, right = Factor(0, "by query", transposed=True), Factor(1, "by token")


class KeyDistanceBackwardKey(ScaledBackward, kinds=("key_distance_scores_backward_key",)):
    """∂L/∂k_j = Σ_i w_ij D_ij / √d; w (B, h, S, S), D (B, S, S, d), result (B, S, H)."""

    left, right, result = Factor(0, "by key"), Factor(1, "distances by key"), "by token"


class KeyDistanceBackwardDistance(ScaledBackward, kinds=("key_distance_scores_backward_distance",)):
    """∂L/∂D_ij = Σ w_ij k_j / √d over heads; w (B, h, S, S), k (B, S, H), result (B, S, S, d)."""

    left, right, result = Factor(0, "by key", transposed=True), Factor(1, "by token"), "distances by key"


class DistanceLookupGradient(LookupGradient, kinds=("distance_lookup_gradient",)):
    """The gradient of the distance table, summed over the positions of each distance: (B, S, S, d) -> (2P − 1, d)."""

    lookup = DistanceLookup
