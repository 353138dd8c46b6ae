"""Pooling: from a hidden state (B, S, H) to an embedding of each sentence (B, H), and its normalisation."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from conformance.model.heads import POOLING
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import accumulation_variance
from conformance.oracle.maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.step import Step, elementwise

Mask = npt.NDArray[np.bool_]


def _one(index: npt.NDArray[np.int64], length: int) -> Array:
    return np.asarray(np.arange(length) == index[:, None], np.float64)


def _last(mask: Mask) -> npt.NDArray[np.int64]:
    return np.asarray(mask.shape[1] - 1 - mask[:, ::-1].argmax(1))


def _places(mask: Mask) -> Array:
    """Of each token its place in the row, from 1; 0 for padding."""
    return np.asarray(mask * np.arange(1.0, mask.shape[1] + 1.0))


def _mean(mask: Mask) -> Array:
    return np.asarray(mask / np.maximum(mask.sum(1, keepdims=True), 1))


def _inner(mask: Mask) -> Array:
    """The mean but for the first and the last token that is not padding; over all where nothing else is left."""
    length = mask.shape[1]
    inner = mask & (_one(mask.argmax(1), length) == 0) & (_one(_last(mask), length) == 0)
    return _mean(np.where(inner.any(1, keepdims=True), inner, mask))


WEIGHTS: Mapping[str, Callable[[Mask], Array]] = {
    "cls": lambda mask: _one(np.zeros(len(mask), np.int64), mask.shape[1]),
    "mean": _mean,
    "mean-sqrt-length": lambda mask: np.asarray(mask / np.sqrt(np.maximum(mask.sum(1, keepdims=True), 1))),
    "weighted-mean": lambda mask: _places(mask) / np.maximum(_places(mask).sum(1, keepdims=True), 1),
    "mean-with-padding": lambda mask: np.full(mask.shape, 1.0 / mask.shape[1]),
    "mean-without-special": _inner,
    "last": lambda mask: _one(_last(mask), mask.shape[1]),
}
"""(B, S) from the mask: the weight of each token, by the name of the pooling."""


class Weighted(Step):
    """e = Σ_s a_s x_s: (B, S, H) -> (B, H); a the weights of the pooling that the activation's kind names."""

    couples_positions = True

    @cached_property
    def weights(self) -> Array:
        """(B, S)."""
        name = self.site.activation.kind.removeprefix(POOLING).removesuffix("_backward")
        return WEIGHTS[name](self.site.batch.mask)

    @property
    def is_by_place(self) -> bool:
        """Whether each token has a weight of its own."""
        return f"{POOLING}weighted-mean" in self.site.activation.kind

    @cached_property
    def places(self) -> Array:
        """(B, S): by what each token is multiplied before the sum is divided."""
        mask = self.site.batch.mask
        return _places(mask) if self.is_by_place else np.asarray(mask, np.float64)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(np.einsum("bs,bsh->bh", self.weights, self.parents[0]))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂e/∂x_s = a_s."""
        a = self.weights
        return (LinearMap(lambda v: np.einsum("bs,bsh->bh", a**2, v), lambda w: a[:, :, None] * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """A product accumulated over the tokens and a division by n or √n, u²/3 · (Σ s_k² + 2 e² or 3 e²), and the sum's store.

        Where tokens have weights of their own the products are rounded too, u²/3 · p², and stored, before they are summed. None but
        for the format's smallest numbers where one token is copied.
        """
        if (self.weights.astype(bool).sum(1) <= 1).all():
            return elementwise(np.full(self.value.shape, arithmetic.storage.floor_variance))
        partial = np.cumsum(self.weights[:, :, None] * self.parents[0], 1)
        roots = "sqrt" in self.site.activation.kind
        squares = (partial**2).sum(1) + (1 + roots) * self.value**2
        divisor = self.weights.max(1, keepdims=True) / self.places.max(1, keepdims=True)  # the sum before it is divided is e / a
        stored = divisor**2 * arithmetic.call_variance(self.value / divisor)
        if self.is_by_place:
            products = self.places[:, :, None] * self.parents[0]
            rounded = arithmetic.elementwise.unit_roundoff**2 / 3.0 * products**2 + arithmetic.call_variance(products)
            stored = stored + divisor**2 * rounded.sum(1)
        return elementwise(accumulation_variance(squares, self.value, self.parents[0].shape[1], arithmetic) + stored)


class Maximum(Step):
    """e_h = max over unmasked s of x_sh: (B, S, H) -> (B, H)."""

    couples_positions = True

    @cached_property
    def chosen(self) -> Array:
        """(B, S, H): 1 at the largest, the first of equal ones, and 0 elsewhere."""
        masked = np.where(self.site.batch.mask[:, :, None], self.parents[-1], -np.inf)
        return np.asarray(np.arange(masked.shape[1])[:, None] == masked.argmax(1)[:, None, :], np.float64)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray((self.chosen * self.parents[0]).sum(1))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """1 at the largest, 0 elsewhere."""
        chosen = self.chosen
        return (LinearMap(lambda v: (chosen * v).sum(1), lambda w: chosen * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """None but for the format's smallest numbers: a copy."""
        return elementwise(np.full(self.value.shape, arithmetic.storage.floor_variance))


class Unit(Step):
    """y = x / |x|, a row each: (B, H) -> (B, H)."""

    @cached_property
    def length(self) -> Array:
        """|x|, (B, 1)."""
        return np.asarray(np.maximum(np.sqrt((self.parents[0] ** 2).sum(-1, keepdims=True)), np.finfo(np.float64).tiny))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self.parents[0] / self.length)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂y_i/∂x_j = (δ_ij − y_i y_j)/|x|, so the variance is [(1 − 2 y_i²) v_i + y_i² Σ y_j² v_j] / |x|²."""
        y, length = self.value, self.length

        def variance(v: Array) -> Array:
            shared = (y**2 * v).sum(-1, keepdims=True)
            return np.asarray(np.maximum((1.0 - 2.0 * y**2) * v + y**2 * shared, 0.0) / length**2)

        return (LinearMap(variance, lambda w: (w - y * (y * w).sum(-1, keepdims=True)) / length),)

    def relative(self, arithmetic: Arithmetic) -> Array:
        """(B, 1): the variance of the relative error of |x|: of the sum of squares, halved by the root, the root and its store."""
        u2 = arithmetic.accumulate.unit_roundoff**2 / 3.0
        partial = np.cumsum(self.parents[0] ** 2, -1)
        root = arithmetic.functions.relative("rsqrt", arithmetic.accumulate) ** 2 / 3.0
        stored = arithmetic.call_variance(self.length) / self.length**2
        return np.asarray(u2 * (partial**2).sum(-1, keepdims=True) / (4.0 * self.length**4) + root + stored)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """That of |x|, a row each; the division elementwise, and the store."""
        u2 = arithmetic.accumulate.unit_roundoff**2 / 3.0
        own = np.maximum(u2 * self.value**2 + arithmetic.store_variance(self.value), arithmetic.storage.floor_variance)
        return Roundings((Source(own, identity()), Source(self.relative(arithmetic), shared_by_row(self.value))))
