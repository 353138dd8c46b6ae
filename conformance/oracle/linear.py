"""Linear layers."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import Accumulation, accumulation_variance, weight_operand
from conformance.oracle.maps import LinearMap, Roundings, matrix, rows_times
from conformance.oracle.step import Step, elementwise


class Linear(Step):
    """y = x Wᵀ + b; x (..., I), W (O, I), b (O,), y (..., O); a layer without bias has b = 0."""

    @property
    def inputs(self) -> Array:
        """x."""
        return self.parents[0]

    @property
    def bias(self) -> Array:
        """b, zeros where the layer has none."""
        return self.site.parameters.get("bias", np.zeros(len(self.site.parameters["weight"])))

    @cached_property
    def _accumulation(self) -> Accumulation:
        weight = self.site.parameters["weight"]
        return Accumulation(self.inputs, weight.T, self.bias, lambda: weight_operand(weight).transposed)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return self._accumulation.product + self.bias

    def moved_by(self, *errors: Array | Single) -> Single:
        """e Wᵀ, in float32: an error is a small number to begin with."""
        weight = weight_operand(self.site.parameters["weight"])
        return rows_times(errors[0].astype(np.float32), weight.values.T) / np.float32(weight.scale)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """W."""
        return (matrix(self.site.parameters["weight"]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """As `oracle.accumulation` derives; a native bias is a call of its own and rounds the product to storage first."""
        squares = self._accumulation.squares
        variance = accumulation_variance(squares, self.value, self.inputs.shape[-1], arithmetic)
        if arithmetic.rounding == "native" and "bias" in self.site.parameters:
            variance = variance + arithmetic.call_variance(self.value - self.bias)
        return elementwise(variance)


class FirstTokenLinear(Linear):
    """y = x[:, 0] Wᵀ + b: (B, S, H) -> (B, H), the pooler's dense layer."""

    couples_positions = True

    @property
    def inputs(self) -> Array:
        """The first token of each row."""
        return self.parents[0][:, 0]

    def moved_by(self, *errors: Array | Single) -> Single:
        """Of the first token's."""
        return super().moved_by(errors[0][:, 0])

    def jacobians(self) -> tuple[LinearMap, ...]:
        """W at the first token, 0 elsewhere."""
        inner, shape = matrix(self.site.parameters["weight"]), self.parents[0].shape

        def adjoint(w: Array) -> Array:
            out = np.zeros(shape)
            out[:, 0] = inner.adjoint(w)
            return out

        return (LinearMap(lambda v: inner.variance(v[:, 0]), adjoint),)
