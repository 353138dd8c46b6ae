"""Pooling of a hidden state (B, S, H) to an embedding of each sentence (B, H), and normalization of the embedding."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.model.heads import POOLING
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import accumulation_variance, squared_partial_sums
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.program import call, either, in_kernel, inverse_root
from conformance.oracle.step import ProgramStep, Step, elementwise_roundings


def _one(index: npt.NDArray[np.int64], length: int) -> Array:
    return as_array(np.arange(length) == index[:, None], np.float64)


def _last(mask: Mask) -> npt.NDArray[np.int64]:
    return as_array(mask.shape[1] - 1 - mask[:, ::-1].argmax(1))


def _places(mask: Mask) -> Array:
    """Return the position of each token in its row, counted from 1; 0 for padding."""
    return as_array(mask * np.arange(1.0, mask.shape[1] + 1.0))


def _mean(mask: Mask) -> Array:
    return as_array(mask / np.maximum(mask.sum(1, keepdims=True), 1))


def _inner(mask: Mask) -> Array:
    """Return weights of the mean without the first and the last attended token; over all attended tokens if no others are left."""
    length = mask.shape[1]
    inner = mask & (_one(mask.argmax(1), length) == 0) & (_one(_last(mask), length) == 0)
    return _mean(np.where(inner.any(1, keepdims=True), inner, mask))


WEIGHTS: Mapping[str, Callable[[Mask], Array]] = {
    "cls": lambda mask: _one(np.zeros(len(mask), np.int64), mask.shape[1]),
    "mean": _mean,
    "mean-sqrt-length": lambda mask: as_array(mask / np.sqrt(np.maximum(mask.sum(1, keepdims=True), 1))),
    "weighted-mean": lambda mask: _places(mask) / np.maximum(_places(mask).sum(1, keepdims=True), 1),
    "mean-with-padding": lambda mask: np.full(mask.shape, 1.0 / mask.shape[1]),
    "mean-without-special": _inner,
    "last": lambda mask: _one(_last(mask), mask.shape[1]),
}
"""The function from the mask to the weight of each token, (B, S), by name of the pooling."""


WEIGHTED = ("pooling-cls", "pooling-mean", "pooling-mean-sqrt-length", "pooling-weighted-mean", "pooling-last")


class Weighted(Step, kinds=WEIGHTED):
    """e = Σ_s a_s x_s with the weights a of the pooling in the activation's kind: (B, S, H) -> (B, H)."""

    couples_positions = True

    @cached_property
    def weights(self) -> Array:
        """The weights a, (B, S)."""
        name = self.site.activation.kind.removeprefix(POOLING).removesuffix("_backward")
        return WEIGHTS[name](self.site.batch.mask)

    @property
    def is_by_place(self) -> bool:
        """Whether the weight of a token depends on its position."""
        return "weighted-mean" in self.site.activation.kind

    @cached_property
    def places(self) -> Array:
        """The factor of each token before the sum is divided, (B, S): its position, or 1; 0 for padding."""
        mask = self.site.batch.mask
        return _places(mask) if self.is_by_place else as_array(mask, np.float64)

    @cached_property
    def value(self) -> Array:
        """The embeddings e, (B, H)."""
        return as_array(np.einsum("bs,bsh->bh", self.weights, self.parents[0]))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂e/∂x_s = a_s."""
        a = self.weights
        return (LinearMap(lambda v: np.einsum("bs,bsh->bh", a**2, v), lambda w: a[:, :, None] * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the product accumulated over tokens, of the division by n or √n, and of storing the sum.

        Accumulation and division have u²/3 · (Σ s_k² + 2 e² or 3 e²). If weights depend on positions, the products p are also
        rounded, u²/3 · p², and stored, before they are summed. If at most one token has a weight, it is copied, unless it is
        multiplied by its position, and only the variance floor of the format remains.
        """
        if (self.weights.astype(bool).sum(1) <= 1).all() and self.places.max() <= 1.0:
            return elementwise_roundings(np.full(self.value.shape, arithmetic.storage.floor_variance, like=self.value))
        partial = squared_partial_sums(self.weights[:, :, None] * self.parents[0], 1)[:, 0]
        roots = "sqrt" in self.site.activation.kind
        squares = partial + (1 + roots) * self.value**2
        largest = self.places.max(1, keepdims=True)  # 0 if a row has no token, whose e is 0
        divisor = np.where(largest > 0.0, self.weights.max(1, keepdims=True) / np.maximum(largest, 1.0), 1.0)
        stored = divisor**2 * arithmetic.call_rounding_variance(self.value / divisor)  # The undivided sum is e / divisor.
        if self.is_by_place:
            products = self.places[:, :, None] * self.parents[0]
            rounded = arithmetic.elementwise_format.unit_roundoff**2 / 3.0 * products**2 + arithmetic.call_rounding_variance(
                products
            )
            stored = stored + divisor**2 * rounded.sum(1)
        return elementwise_roundings(accumulation_variance(squares, self.value, self.parents[0].shape[1], arithmetic) + stored)


class Maximum(Step, kinds=("pooling-max",)):
    """e_h = max of x_sh over attended tokens s: (B, S, H) -> (B, H)."""

    couples_positions = True

    @cached_property
    def chosen(self) -> Array:
        """The selection (B, S, H): 1 at the largest element (the first one if several are equal), 0 elsewhere."""
        masked = np.where(self.site.batch.mask[:, :, None], self.parents[-1], -np.inf)
        return as_array(np.arange(masked.shape[1])[:, None] == masked.argmax(1)[:, None, :], np.float64)

    @cached_property
    def value(self) -> Array:
        """The embeddings e, (B, H)."""
        return as_array((self.chosen * self.parents[0]).sum(1))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the map that is 1 at the largest element and 0 elsewhere."""
        chosen = self.chosen
        return (LinearMap(lambda v: (chosen * v).sum(1), lambda w: chosen * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the variance floor of the format: the maximum is a copy."""
        return elementwise_roundings(np.full(self.value.shape, arithmetic.storage.floor_variance, like=self.value))


def length_of(x: Array) -> Any:
    """Return the Euclidean norm |x| of each row, (B, 1), at least 1e-12 as in `torch.nn.functional.normalize`."""
    squares = np.maximum((in_kernel(x) * x).sum(-1, keepdims=True), 1e-24)
    return call(either(x, lambda: np.sqrt(squares), lambda: 1.0 / inverse_root(squares)))


class Unit(ProgramStep, kinds=("unit",)):
    """y = x / |x| for each row: (B, H) -> (B, H)."""

    def program(self, *parents: Any) -> Any:
        """Return the result."""
        (x,) = parents
        return in_kernel(x) / length_of(x)
