"""Losses against numbers: the squared error of a regression, and the binary cross entropy of labels that may hold at once.

Both are means over all N = B · C elements of the logits x, each with its target t of `Batch.class_targets`, as Hugging Face's
`BertForSequenceClassification` computes them where `problem_type` is `regression` or `multi_label_classification`.
"""

import numpy as np

from conformance.errors import UsageError
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.maps import LinearMap, Roundings
from conformance.oracle.step import Step, elementwise


class Targeted(Step):
    """A mean over the elements of the last parent, or the gradient of one; (B, C)."""

    @cached_property
    def targets(self) -> Array:
        """t, (B, C); `UsageError` where the batch has none."""
        targets = self.site.batch.class_targets
        if targets is None:
            raise UsageError(f"{self.site.activation.name} needs class_targets in the batch")
        return targets

    @property
    def logits(self) -> Array:
        """x, (B, C)."""
        return self.parents[-1]


class TargetLoss(Targeted):
    """L = mean of l(x, t); (B, C) -> (). Subclasses have l, ∂l/∂x and the variance of what rounds on the way to l."""

    @property
    def terms(self) -> Array:
        """L is the mean of l(x, t): (B, C)."""
        raise NotImplementedError

    @property
    def slope(self) -> Array:
        """∂l/∂x."""
        raise NotImplementedError

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """Of the roundings of l."""
        raise NotImplementedError

    @cached_property
    def value(self) -> Array:
        """The equation, a 0-d array."""
        return np.asarray(self.terms.mean())

    def jacobians(self) -> tuple[LinearMap, ...]:
        """∂L/∂x = ∂l/∂x / N."""
        slope = self.slope / self.logits.size
        return (LinearMap(lambda v: np.asarray((slope**2 * v).sum()), lambda w: slope * w),)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Those of l, divided by N²; and the mean's accumulation, at most N partial sums of at most N L, and the store."""
        count, u2 = self.logits.size, arithmetic.elementwise.unit_roundoff**2 / 3.0
        terms = self.terms_variance(arithmetic) + arithmetic.call_variance(self.terms)
        mean = u2 * (count + 1) * self.value**2 + arithmetic.storage.rounding_variance(self.value)
        return elementwise(np.asarray(terms.sum() / count**2 + mean))


class SquaredError(TargetLoss):
    """L = mean (x − t)²; (B, C) -> ()."""

    @cached_property
    def terms(self) -> Array:
        """(x − t)²."""
        return np.square(self.logits - self.targets)

    @property
    def slope(self) -> Array:
        """2 (x − t)."""
        return 2.0 * (self.logits - self.targets)

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """d = x − t rounds, relative u, which moves d² by 2u d²; d² rounds: u²/3 · 5 d⁴."""
        return np.asarray(5.0 * arithmetic.elementwise.unit_roundoff**2 / 3.0 * np.square(self.terms))


class BinaryCrossEntropy(TargetLoss):
    """L = mean of −t log σ(x) − (1 − t) log σ(−x) = mean of max(x, 0) − t x + log(1 + exp(−|x|)); (B, C) -> ()."""

    @cached_property
    def _logarithm(self) -> Array:
        return np.log1p(np.exp(-np.abs(self.logits)))

    @cached_property
    def terms(self) -> Array:
        """max(x, 0) − t x + log(1 + exp(−|x|))."""
        return np.asarray(np.maximum(self.logits, 0.0) - self.targets * self.logits + self._logarithm)

    @property
    def slope(self) -> Array:
        """σ(x) − t."""
        return sigmoid(self.logits) - self.targets

    def terms_variance(self, arithmetic: Arithmetic) -> Array:
        """Of max(x, 0) − t x + λ, λ = log(1 + z), z = exp(−|x|), or of (1 − t) x − log σ(x), whose parts are no larger.

        u²/3 times the squares of t x and of max(x, 0) − t x, each at most |x|; of λ; of l; and of 1, by which a rounding of 1 + z
        moves λ, relative u. A third of the squares of exp's relative error times ∂λ/∂z z = z/(1 + z), and of log's error at λ.
        Where every call stores its result, t x and log σ are stored.
        """
        inner, functions = arithmetic.elementwise, arithmetic.functions
        u2, z, size = inner.unit_roundoff**2 / 3.0, np.exp(-np.abs(self.logits)), np.abs(self.logits)
        own = (functions.relative("exp", inner) * z / (1.0 + z)) ** 2 + functions.error("log", self._logarithm, inner) ** 2
        calls = arithmetic.call_variance(size) + arithmetic.call_variance(np.maximum(-self.logits, 0.0) + self._logarithm)
        return np.asarray(u2 * (2.0 * size**2 + self._logarithm**2 + self.terms**2 + 1.0) + own / 3.0 + calls)


def sigmoid(x: Array) -> Array:
    """σ(x) = 1/(1 + exp(−x)), without overflow."""
    z = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0.0, 1.0, z) / (1.0 + z))
