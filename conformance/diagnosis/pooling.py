"""Pooling: the ways from a hidden state (B, S, H) to an embedding (B, H), each a step with its Jacobian and its roundings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.judge.selection import Mask
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle import Step
from conformance.oracle.maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.products import accumulation_variance
from conformance.oracle.step import elementwise

NORMALISED = "-normalised"


@dataclass(frozen=True)
class Pooling:
    """One way of pooling.

    Attributes:
        name: what `--pooling` calls it; normalised ones end in `-normalised`.
        sentence: the same for people.
        weights: (B, S) from the mask: the weight of each token; None where it is no weighted sum.
    """

    name: str
    sentence: str
    weights: Callable[[Mask], Array] | None = None

    @property
    def base(self) -> str:
        """Without the normalising."""
        return self.name.removesuffix(NORMALISED)

    @property
    def is_normalised(self) -> bool:
        """Whether each embedding is divided by its length."""
        return self.name.endswith(NORMALISED)


def _one(index: Array, length: int) -> Array:
    return np.asarray(np.arange(length) == index[:, None], np.float64)


def _mean(mask: Mask) -> Array:
    return np.asarray(mask / np.maximum(mask.sum(1, keepdims=True), 1))


def _last(mask: Mask) -> Array:
    return np.asarray(mask.shape[1] - 1 - mask[:, ::-1].argmax(1))


def _inner(mask: Mask) -> Array:
    """The mean but for the first and the last token that is not padding; over all where nothing else is left."""
    length = mask.shape[1]
    inner = mask & (_one(mask.argmax(1), length) == 0) & (_one(_last(mask), length) == 0)
    return _mean(np.where(inner.any(1, keepdims=True), inner, mask))


_PLAIN = (
    Pooling("cls", "the first token", lambda mask: _one(np.zeros(len(mask)), mask.shape[1])),
    Pooling("mean", "the mean over the tokens that are not padding", _mean),
    Pooling(
        "mean-with-padding", "the mean over all tokens, padding as well", lambda mask: np.full(mask.shape, 1.0 / mask.shape[1])
    ),
    Pooling("mean-without-special", "the mean without [CLS], [SEP] and padding", _inner),
    Pooling("last", "the last token that is not padding", lambda mask: _one(_last(mask), mask.shape[1])),
    Pooling("max", "the maximum over the tokens that are not padding"),
    Pooling("pooler", "the pooler's output"),
)
POOLINGS: Mapping[str, Pooling] = {
    p.name: p
    for plain in _PLAIN
    for p in (plain, Pooling(plain.name + NORMALISED, f"{plain.sentence}, normalised to length 1", plain.weights))
}


class Weighted(Step):
    """e = Σ_s a_s x_s: (B, S, H) -> (B, H); a the pooling's weights, the pooling named by the activation's kind."""

    @cached_property
    def _weights(self) -> Array:
        weights = POOLINGS[self.site.activation.kind].weights
        assert weights is not None
        return weights(self.site.batch.mask)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(np.einsum("bs,bsh->bh", self._weights, self.parents[0]))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂e/∂x_s = a_s."""
        a = self._weights
        return (LinearMap(lambda v: np.einsum("bs,bsh->bh", a**2, v), lambda w: a[:, :, None] * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """A product accumulated over the tokens and a division, u²/3 · (Σ s_k² + 2 e²); none where one token is copied."""
        if (self._weights.astype(bool).sum(1) <= 1).all():
            return elementwise(np.zeros_like(self.value))
        partial = np.cumsum(self._weights[:, :, None] * self.parents[0], 1)
        squares = (partial**2).sum(1) + self.value**2
        return elementwise(accumulation_variance(squares, self.value, self.parents[0].shape[1], arithmetic))


class Maximum(Step):
    """e_h = max over unmasked s of x_sh: (B, S, H) -> (B, H)."""

    @cached_property
    def _chosen(self) -> Array:
        masked = np.where(self.site.batch.mask[:, :, None], self.parents[0], -np.inf)
        return np.asarray(np.arange(masked.shape[1])[:, None] == masked.argmax(1)[:, None, :], np.float64)

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray((self._chosen * self.parents[0]).sum(1))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """1 at the largest, 0 elsewhere."""
        chosen = self._chosen
        return (LinearMap(lambda v: (chosen * v).sum(1), lambda w: chosen * w[:, None, :]),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """None: a copy."""
        return elementwise(np.zeros_like(self.value))


class Handed(Step):
    """The parent as it is: the pooler's output."""

    @property
    def value(self) -> Array:
        """The parent."""
        return self.parents[0]

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """None."""
        return elementwise(np.zeros_like(self.value))


class Unit(Step):
    """y = x / |x|, a row each: (B, H) -> (B, H)."""

    @cached_property
    def _length(self) -> Array:
        return np.asarray(np.maximum(np.sqrt((self.parents[0] ** 2).sum(-1, keepdims=True)), np.finfo(np.float64).tiny))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self.parents[0] / self._length)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂y_i/∂x_j = (δ_ij − y_i y_j)/|x|, so the variance is [(1 − 2 y_i²) v_i + y_i² Σ y_j² v_j] / |x|²."""
        y, length = self.value, self._length

        def variance(v: Array) -> Array:
            shared = (y**2 * v).sum(-1, keepdims=True)
            return np.asarray(np.maximum((1.0 - 2.0 * y**2) * v + y**2 * shared, 0.0) / length**2)

        return (LinearMap(variance, lambda w: (w - y * (y * w).sum(-1, keepdims=True)) / length),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """One relative error a row, of the squares (halved by the root) and of the root; the division elementwise; the store."""
        u2 = arithmetic.accumulate.unit_roundoff**2 / 3.0
        partial = np.cumsum(self.parents[0] ** 2, -1)
        root = arithmetic.functions.relative("rsqrt", arithmetic.accumulate) ** 2 / 3.0
        row = u2 * (partial**2).sum(-1, keepdims=True) / (4.0 * self._length**4) + root
        own = np.maximum(u2 * self.value**2 + arithmetic.store_variance(self.value), arithmetic.storage.floor_variance)
        return Roundings((Source(own, identity()), Source(row, shared_by_row(self.value))))


def step_of(pooling: Pooling) -> type[Step]:
    """The equation of a pooling, without the normalising."""
    return Weighted if pooling.weights else {"max": Maximum, "pooler": Handed}[pooling.base]
