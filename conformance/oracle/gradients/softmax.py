"""Gradients of softmax and log-softmax with respect to scores and logits."""

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.bilinear import Context, split_heads
from conformance.oracle.carried import Errors
from conformance.oracle.maps import LinearMap, Roundings, Source, diagonal, identity, shared_by_row
from conformance.oracle.step import Step


class ProbabilitiesBackward(Step):
    """∂L/∂s = p (w − d), d = Σ_j p_j w_j; w, p and result (B, h, S, S).

    d is also Σ c ∂L/∂c over a head's features of the context c = p v: that is how a kernel has it that does not keep w (Dao et al.
    2022, FlashAttention, algorithm 4). ∂L/∂c and v, (B, S, H) each, are parents for what it rounds.
    """

    couples_positions = True

    @property
    def _read(self) -> tuple[Array, Array]:
        """w, p."""
        w, p, *_ = self.parents
        return w, p

    @cached_property
    def _mean(self) -> Array:
        """d."""
        w, p = self._read
        return np.asarray((p * w).sum(-1, keepdims=True))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        w, p = self._read
        return p * (w - self._mean)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂y_i/∂w_j = p_i (δ_ij − p_j) and ∂y_i/∂p_j = (w_i − d) δ_ij − p_i w_j; none by the others."""
        (w, p), centred = self._read, self._read[0] - self._mean

        def of_upstream(v: Array) -> Array:
            return np.asarray(p**2 * np.maximum((1.0 - 2.0 * p) * v + (p**2 * v).sum(-1, keepdims=True), 0.0))

        def of_probs(v: Array) -> Array:
            own = centred * (centred - 2.0 * p * w) * v
            return np.asarray(np.maximum(own + p**2 * (w**2 * v).sum(-1, keepdims=True), 0.0))

        nothing = LinearMap(lambda _: np.zeros_like(p), lambda _: np.zeros_like(self.parents[2]))
        return (
            LinearMap(of_upstream, lambda u: p * (u - (p * u).sum(-1, keepdims=True))),
            LinearMap(of_probs, lambda u: centred * u - w * (p * u).sum(-1, keepdims=True)),
            nothing,
            nothing,
        )

    def through(self, parent: int, errors: Errors) -> Errors:
        """Errors e of p are by way of d one error a row, −Σ_j w_j e_j, which moves it by p; the others are (w_i − d) e_i.

        What the two have in common counts for the latter, as far as no variance is negative.
        """
        if parent != 1 or not errors.any:
            return super().through(parent, errors)
        (w, p), v = self._read, errors.variance
        centred, shared = w - self._mean, np.sqrt((w**2 * v).sum(-1, keepdims=True))
        return Errors(np.maximum(centred * (centred - 2.0 * p * w) * v, 0.0), (p * shared,))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """u is the inner operations' unit roundoff, a the accumulation's.

        - d, one error a row, which moves y by p: from p and w a²/3 · (Σ s_k² + Σ (p w)²) for the partial sums s_k of p w, and
          u²/3 · d²; from the context the same of c ∂L/∂c, and (∂L/∂c)² times the variance of c; the larger;
        - elementwise: u²/3 times the squares of p w, p d and y, since a kernel may form p w − p d; then the store;
        - at the largest score of a row all of these together, where it was subtracted and is differentiated: its gradient −Σ y is 0
          but for rounding.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        (w, p), d, y = self._read, self._mean, self.value
        of_context, v = self.parents[2:]
        context, size = Context(self.site, p, v), self.site.architecture.head_size
        kept = split_heads(of_context**2 * context.roundings(arithmetic).variance(), size).sum(-1, keepdims=True)
        from_context = kept + a2 * _partial(split_heads(of_context * context.value, size))
        shared = np.maximum(a2 * _partial(p * w), from_context) + u2 * d**2
        inner = u2 * ((p * w) ** 2 + (p * d) ** 2 + y**2)
        own = np.maximum(inner + arithmetic.store_variance(y), arithmetic.storage.floor_variance)
        at_largest = Source(inner + arithmetic.function_variance(y), _to_largest(p))
        return Roundings((Source(own, identity()), Source(shared, shared_by_row(p), p), at_largest))


def _to_largest(p: Array) -> LinearMap:
    """J e = Σ e of a row at its largest element, 0 elsewhere."""
    largest = np.zeros_like(p)
    np.put_along_axis(largest, p.argmax(-1)[..., None], 1.0, -1)
    return LinearMap(
        lambda v: largest * v.sum(-1, keepdims=True), lambda u: np.broadcast_to((largest * u).sum(-1, keepdims=True), p.shape)
    )


def _partial(terms: Array) -> Array:
    """Σ s_k² + Σ t² a row, s_k the partial sums of the terms t."""
    return np.asarray((np.cumsum(terms, -1) ** 2 + terms**2).sum(-1, keepdims=True))


class LogSoftmaxBackward(Step):
    """∂L/∂x = w − p t, p = exp(l), t = Σ_j w_j; w, l and result (..., C)."""

    @cached_property
    def _probs(self) -> Array:
        return np.exp(self.parents[1])

    @cached_property
    def _total(self) -> Array:
        return np.asarray(self.parents[0].sum(-1, keepdims=True))

    @cached_property
    def value(self) -> Array:
        """The equation."""
        return np.asarray(self.parents[0] - self._probs * self._total)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂y_i/∂w_j = δ_ij − p_i and ∂y_i/∂l_i = −p_i t."""
        p = self._probs

        def variance(v: Array) -> Array:
            return np.asarray(np.maximum((1.0 - 2.0 * p) * v + p**2 * v.sum(-1, keepdims=True), 0.0))

        of_upstream = LinearMap(variance, lambda u: u - (p * u).sum(-1, keepdims=True))
        return (of_upstream, diagonal(-p * self._total))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """u is the inner operations' unit roundoff, a the accumulation's.

        - t, one error a row: a²/3 · Σ s_k² for the partial sums of w, and u²/3 · t²; it moves y by p;
        - elementwise: u²/3 times the squares of p t (twice: exp is rounded, the product) and y, a third of the square of exp's
          relative error times that of p t; then the store.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise, arithmetic.accumulate))
        w, p, t, y = self.parents[0], self._probs, self._total, self.value
        shared = a2 * (np.cumsum(w, -1) ** 2).sum(-1, keepdims=True) + u2 * t**2
        exponential = arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        own = (2.0 * u2 + exponential) * (p * t) ** 2 + u2 * y**2 + arithmetic.store_variance(y)
        own = np.maximum(own, arithmetic.storage.floor_variance)
        return Roundings((Source(own, identity()), Source(shared, shared_by_row(p))))
