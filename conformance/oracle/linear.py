"""Linear layers."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import BLOCKS, Accumulation, accumulation_variance, product_in_single, weight_operand
from conformance.oracle.linear_maps import LinearMap, Roundings, matrix
from conformance.oracle.step import Step, elementwise_roundings


class Linear(Step, kinds=("linear",)):
    """y = x Wᵀ + b with x (..., I), W (O, I), b (O,) and y (..., O); b = 0 if the layer has no bias."""

    @property
    def inputs(self) -> Array:
        """The input x, (..., I)."""
        return self.parents[0]

    @property
    def bias(self) -> Array:
        """The bias b, (O,); zeros if the layer has none."""
        return self.site.parameters.get("bias", np.zeros(len(self.site.parameters["weight"]), like=self.site.parameters["weight"]))

    @cached_property
    def _accumulation(self) -> Accumulation:
        weight = self.site.parameters["weight"]
        return Accumulation(self.inputs, weight.T, self.bias, lambda: weight_operand(weight).transposed)

    @cached_property
    def value(self) -> Array:
        """The result y."""
        return self._accumulation.product + self.bias

    def effect_of(self, *errors: Array | Single) -> Single:
        """Return e Wᵀ, in float32: errors are small, so float32 is accurate enough."""
        return product_in_single(errors[0], weight_operand(self.site.parameters["weight"]).transposed)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map W."""
        return (matrix(self.site.parameters["weight"]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the rounding errors derived in `oracle.accumulation`.

        In native arithmetic, adding the bias is a separate call, so the product is rounded to storage first, as a whole or in parts
        (split-K). The squares of eight parts add up to y² on average, so that their roundings together have the variance of one
        rounding of y, but no less than that of eight subnormal numbers. Where y cancels, the parts are larger; this is not covered.
        """
        squares, terms = self._accumulation.squares, self.inputs.shape[-1]
        variance = accumulation_variance(squares, self.value, terms, arithmetic)
        if arithmetic.rounding == "native" and "bias" in self.site.parameters:
            stored = arithmetic.call_rounding_variance(self.value - self.bias)
            variance += np.maximum(stored, min(BLOCKS, terms) * arithmetic.storage.floor_variance)
        return elementwise_roundings(variance)


class FirstTokenLinear(Linear, kinds=("first_token_linear",)):
    """y = x[:, 0] Wᵀ + b: (B, S, H) -> (B, H), the pooler's dense layer."""

    couples_positions = True

    @property
    def inputs(self) -> Array:
        """The first token of each sequence, (B, H)."""
        return self.parents[0][:, 0]

    def effect_of(self, *errors: Array | Single) -> Single:
        """Return e Wᵀ for the error e of the first token, in float32."""
        return super().effect_of(errors[0][:, 0])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that is W at the first token and 0 at all others."""
        inner, shape = matrix(self.site.parameters["weight"]), self.parents[0].shape

        def adjoint(w: Array) -> Array:
            out = np.zeros(shape, like=w)
            out[:, 0] = inner.adjoint(w)
            return out

        return (LinearMap(lambda v: inner.variance(v[:, 0]), adjoint),)
