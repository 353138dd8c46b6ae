"""Losses with numeric targets: the squared error of a regression, and the binary cross entropy of multi-label classification.

Both are means over all N = B · C elements of the logits x, each with its target t of `Batch.class_targets`, as Hugging Face's
`BertForSequenceClassification` computes them if `problem_type` is `regression` or `multi_label_classification`.
"""

import numpy as np
from scipy.special import expit

from conformance.errors import UsageError
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings, summed
from conformance.oracle.losses import mean_variance
from conformance.oracle.step import Step, elementwise_roundings


class Targeted(Step):
    """A mean over the elements of the last parent, (B, C), or the gradient of such a mean."""

    @cached_property
    def targets(self) -> Array:
        """The targets t, (B, C).

        Raises:
            UsageError: the batch has no `class_targets`.
        """
        targets = self.site.batch.class_targets
        if targets is None:
            raise UsageError(f"{self.site.activation.name} needs class_targets in the batch")
        return targets

    @property
    def logits(self) -> Array:
        """The logits x, (B, C)."""
        return self.parents[-1]

    @property
    def slope(self) -> Array:
        """The derivative ∂l/∂x of a term l(x, t) of the mean, (B, C)."""
        raise NotImplementedError


class Squared(Targeted):
    """The terms are l = (x − t)²."""

    @cached_property
    def slope(self) -> Array:
        """The derivative 2 (x − t), (B, C)."""
        return 2.0 * (self.logits - self.targets)


class BinaryEntropy(Targeted):
    """The terms are l = −t log σ(x) − (1 − t) log σ(−x)."""

    @cached_property
    def sigmoid(self) -> Array:
        """The probabilities σ(x), (B, C)."""
        return sigmoid(self.logits)

    @property
    def slope(self) -> Array:
        """The derivative σ(x) − t, (B, C)."""
        return self.sigmoid - self.targets


class TargetLoss(Targeted):
    """L = mean of l(x, t): (B, C) -> (). Subclasses define l and the variance of the rounding errors of l."""

    @property
    def terms(self) -> Array:
        """The terms l(x, t), (B, C)."""
        raise NotImplementedError

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """Return the variance of the rounding errors of l, (B, C)."""
        raise NotImplementedError

    @cached_property
    def value(self) -> Array:
        """The loss L, a 0-d array."""
        return as_array(self.terms.mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return ∂L/∂x = ∂l/∂x / N."""
        return (summed(self.slope / self.logits.size),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of l, divided by N², and of the mean (`mean_variance`)."""
        count, terms = self.logits.size, self.terms_variance(arithmetic) + arithmetic.call_rounding_variance(self.terms)
        return elementwise_roundings(as_array(terms.sum() / count**2 + mean_variance(self.value, count, arithmetic)))


class SquaredError(Squared, TargetLoss):
    """L = mean (x − t)²; (B, C) -> ()."""

    @cached_property
    def terms(self) -> Array:
        """The squared errors (x − t)², (B, C)."""
        return np.square(self.logits - self.targets)

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """Return u²/3 · 5 d⁴ for d = x − t: the rounding of d, relative u, changes d² by 2u d², and d² is rounded."""
        return as_array(5.0 * arithmetic.elementwise_format.unit_roundoff**2 / 3.0 * np.square(self.terms))


class BinaryCrossEntropy(BinaryEntropy, TargetLoss):
    """L = mean of −t log σ(x) − (1 − t) log σ(−x) = mean of max(x, 0) − t x + log(1 + exp(−|x|)); (B, C) -> ()."""

    @cached_property
    def _logarithm(self) -> Array:
        return np.log1p(np.exp(-np.abs(self.logits)))

    @cached_property
    def terms(self) -> Array:
        """The terms max(x, 0) − t x + log(1 + exp(−|x|)), (B, C)."""
        return as_array(np.maximum(self.logits, 0.0) - self.targets * self.logits + self._logarithm)

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """Return the error variance of max(x, 0) − t x + λ, with λ = log(1 + z) and z = exp(−|x|).

        The form (1 − t) x − log σ(x) has parts that are no larger. The variance is u²/3 times the squares of t x and of max(x, 0) −
        t x, each at most |x|, of λ, of l, and of 1, by which the rounding of 1 + z changes λ, relative u; and a third of the
        squares of exp's relative error times ∂λ/∂z z = z/(1 + z), and of log's error at λ. If every call stores its result, t x and
        log σ are stored.
        """
        inner, functions = arithmetic.elementwise_format, arithmetic.functions
        u2, z, size = inner.unit_roundoff**2 / 3.0, np.exp(-np.abs(self.logits)), np.abs(self.logits)
        own = (functions.relative("exp", inner) * z / (1.0 + z)) ** 2 + functions.error("log", self._logarithm, inner) ** 2
        calls = arithmetic.call_rounding_variance(size) + arithmetic.call_rounding_variance(
            np.maximum(-self.logits, 0.0) + self._logarithm
        )
        return as_array(u2 * (2.0 * size**2 + self._logarithm**2 + self.terms**2 + 1.0) + own / 3.0 + calls)


def sigmoid(x: Array) -> Array:
    """Return σ(x) = 1/(1 + exp(−x)), without overflow."""
    return as_array(expit(x))
