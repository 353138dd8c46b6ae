"""Gradients of softmax and log-softmax with respect to scores and logits."""

from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.accumulation import squared_partial_sums
from conformance.oracle.bilinear import Context, split_heads
from conformance.oracle.correlated_errors import CorrelatedErrors, RowError
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, shared_by_row
from conformance.oracle.step import ProgramStep


class ProbabilitiesBackward(ProgramStep, kinds=("probs_backward",)):
    """∂L/∂s = p (w − d) with d = Σ_j p_j w_j and w = ∂L/∂p; w, p and result (B, h, S, S).

    d is also the sum of c ∂L/∂c over the features of a head of the context c = p v. Kernels that do not store w compute d in this
    way (Dao et al. 2022, FlashAttention, algorithm 4). ∂L/∂c and v, (B, S, H) each, are parents because the rounding errors of
    such kernels depend on them.
    """

    couples_positions = True

    @cached_property
    def _mean(self) -> Array:
        """The sum d over the keys, (B, h, S, 1)."""
        w, p, *_ = self.parents
        return as_array((p * w).sum(-1, keepdims=True))

    def program(self, *parents: Any) -> Any:
        """Return the gradient, a function of w and p alone."""
        w, p, *_ = parents
        return p * (w - (p * w).sum(-1, keepdims=True))

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result.

        A fused kernel's p is computed again, with errors e' of its own but for what each row shares (`recomputed`), and its d is
        that of the context, with the errors e of the forward pass: the result's error is (w − d) e' − p Σ_j w_j e_j. With
        e = x + a η and k = Cov(x, η), the shared error η has the effect (w − d) a − p Σ_j w_j (k_j + a_j), and what of Σ_j w_j x_j
        is uncorrelated with it has the effect −p. Where p is not computed again, e' is e, and most errors cancel.
        """
        if parent != 1 or not errors.any:
            return super().through(parent, errors)
        (w, p, *_), centred = self.parents, self.parents[0] - self._mean
        variance = as_array(errors.independent)
        along = [(w * error.covariance).sum(-1, keepdims=True) for error in errors.shared]
        rest = (w**2 * variance).sum(-1, keepdims=True) - sum(map(np.square, along))
        effects = [
            centred * error.effect - p * (of_x + (w * error.effect).sum(-1, keepdims=True))
            for error, of_x in zip(errors.shared, along, strict=True)
        ]
        shared = (*effects, -p * np.sqrt(np.maximum(rest, 0.0)))
        return CorrelatedErrors(centred**2 * variance, tuple(map(RowError, shared)))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return three kinds of error, where u is the unit roundoff of the inner operations and a that of accumulation.

        - d: one error per row, which is multiplied by p. Computed from p and w, its variance is a²/3 · (Σ s_k² + Σ (p w)²) for the
          partial sums s_k of p w. Computed from the context, it is the same expression for c ∂L/∂c, plus (∂L/∂c)² times the
          variance of c. The larger of the two is used, plus u²/3 · d², plus the storage of each p w in native arithmetic.
        - Elementwise: u²/3 times the squares of p w, p d and y, since a kernel may form p w − p d; and the rounding to storage.
        - The largest score of a row receives the sum of all errors of the row, those of elements and that of d, since Σ p = 1: a
          candidate may differentiate the subtraction of that score, whose gradient −Σ y is 0 except for rounding errors.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        (w, p, of_context, v), d, y = self.parents, self._mean, self.value
        context, size = Context(self.site, p, v), self.site.architecture.head_size
        kept = split_heads(of_context**2 * context.roundings(arithmetic).variance(), size).sum(-1, keepdims=True)
        from_context = kept + a2 * _partial(split_heads(of_context * context.value, size))
        terms = (np.zeros_like(y) + arithmetic.inner_rounding_variance(p * w)).sum(-1, keepdims=True)
        shared = np.maximum(a2 * _partial(p * w), from_context) + u2 * d**2 + terms
        inner = u2 * ((p * w) ** 2 + (p * d) ** 2 + y**2)
        own = np.maximum(inner + arithmetic.storage_rounding_variance(y), arithmetic.storage.floor_variance)
        at_largest = _at_largest(p, inner + arithmetic.inner_rounding_variance(y), shared)
        return Roundings((Source(own, identity()), Source(shared, shared_by_row(p), p), *at_largest))


def _at_largest(p: Array, elementwise: Array, shared: Array) -> tuple[Source, Source]:
    """Return the errors of the gradient of the largest score of each row, if it receives −Σ y over the row.

    Different scores may have equal probabilities in a half-precision format: any of those with the largest may be that score.

    Args:
        p: the probabilities.
        elementwise: variance of the independent errors of the elements of a row.
        shared: variance of the row's shared error e, which changes Σ y by −e.
    """
    largest = as_array(p == p.max(-1, keepdims=True), np.float64)
    summed = LinearMap(
        lambda v: largest * v.sum(-1, keepdims=True), lambda u: np.broadcast_to((largest * u).sum(-1, keepdims=True), p.shape)
    )
    return Source(elementwise, summed), Source(shared, shared_by_row(largest))


def _partial(terms: Array) -> Array:
    """Return Σ s_k² + Σ t² for each row, where s_k are the partial sums of the terms t."""
    return as_array(squared_partial_sums(terms) + (terms**2).sum(-1, keepdims=True))


class LogSoftmaxBackward(ProgramStep, kinds=("log_softmax_backward",)):
    """∂L/∂x = w − p t with p = exp(l), t = Σ_j w_j and w = ∂L/∂l; w, l and result (..., C)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient."""
        w, log_probs = parents
        return w - np.exp(log_probs) * w.sum(-1, keepdims=True)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the kinds of error, where u is the unit roundoff of the inner operations and a that of accumulation.

        - t: one error per row, which is multiplied by p: a²/3 · Σ s_k² for the partial sums s_k of w, plus u²/3 · t².
        - Elementwise: u²/3 times the squares of p t (twice, for the roundings of exp and of the product) and of y; a third of the
          square of exp's relative error times the square of p t; and the rounding to storage.
        - In native arithmetic, p may be exp(x − m) divided by their sum, instead of exp(l): the storage of the sum and of t divided
          by it, one error per row each; and the errors of x − m, which is no larger than l, and of the stored l.
        - The largest logit of a row receives the sum of all errors of the row, as in `ProbabilitiesBackward.roundings`.
        """
        u2, a2 = (f.unit_roundoff**2 / 3.0 for f in (arithmetic.elementwise_format, arithmetic.accumulate))
        (w, log_probs), y = self.parents, self.value
        p, t = np.exp(log_probs), as_array(w.sum(-1, keepdims=True))
        stored = arithmetic.inner_rounding_variance
        shared = a2 * squared_partial_sums(w) + u2 * t**2 + 2.0 * stored(t)
        exponential = arithmetic.functions.relative("exp", arithmetic.accumulate) ** 2 / 3.0
        inner = (2.0 * u2 + exponential + 2.0 * stored(log_probs)) * (p * t) ** 2 + u2 * y**2
        own = np.maximum(inner + arithmetic.storage_rounding_variance(y), arithmetic.storage.floor_variance)
        at_largest = _at_largest(p, inner + stored(y), shared)
        return Roundings((Source(own, identity()), Source(shared, shared_by_row(p)), *at_largest))
