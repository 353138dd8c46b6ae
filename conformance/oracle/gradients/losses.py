"""Gradients of the losses with respect to logits and log-probabilities.

Those with numeric targets have their own equations.
"""

from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.linear_maps import LinearMap, Roundings
from conformance.oracle.losses import CROSS_ENTROPIES, BinaryEntropy, Choice, Labelled, Span, Squared, Targeted
from conformance.oracle.program import call, value_of
from conformance.oracle.softmax import log_softmax
from conformance.oracle.step import ProgramStep, elementwise_roundings


class _OfRows(ProgramStep):
    """w (softmax(x) − onehot(label)) / N for the N rows of x; w (), x, onehot(label) and the result (N, C)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient, from the log-softmax that the forward pass saved."""
        w, x, onehot = parents
        return (np.exp(call(log_softmax(x))) - value_of(onehot)) * (w / len(value_of(onehot)))


class CrossEntropyBackward(Labelled, kinds=tuple(f"{loss}_backward" for loss in CROSS_ENTROPIES)):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N at the N labelled rows, 0 elsewhere; w (), x and result (..., C)."""

    @cached_property
    def _of_rows(self) -> _OfRows:
        rows = self.rows[0]
        return _OfRows(self.site, self.parents[0], rows, -self.minus_onehot(np.zeros_like(rows)))

    @cached_property
    def value(self) -> Array:
        """The gradient ∂L/∂x."""
        return self.spread(self._of_rows.value)

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobians of the labelled rows; those of others are 0."""
        of_loss, of_logits, _ = self._of_rows.jacobians()
        return LinearMap(lambda v: self.spread(of_loss.variance(v)), lambda u: of_loss.adjoint(self.of_rows(u))), LinearMap(
            lambda v: self.spread(of_logits.variance(self.of_rows(np.broadcast_to(v, self.value.shape)))),
            lambda u: self.spread(of_logits.adjoint(self.of_rows(u))),
        )

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the labelled rows; at others, only the format's floor variance is left."""
        own = self.spread(self._of_rows.roundings(arithmetic).variance())
        return elementwise_roundings(np.maximum(own, arithmetic.storage.floor_variance))


class SpanCrossEntropyBackward(Span, CrossEntropyBackward, kinds=("span_start_loss_backward", "span_end_loss_backward")):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N over the positions, at the start or end logits of N labelled rows; 0 elsewhere."""

    couples_positions = True


class ChoiceCrossEntropyBackward(Choice, CrossEntropyBackward, kinds=("multiple_choice_loss_backward",)):
    """∂L/∂x = w (softmax(x) − onehot(label)) / N over the rows of each of the N labelled questions, 0 elsewhere; x (B, 1)."""


class MeanLossBackward(ProgramStep, kinds=("mean_loss_backward",)):
    """∂L/∂L_i = w / 2 for each of the two losses that the mean loss L averages; w ()."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient, a 0-d array."""
        return parents[0] / 2.0

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return 0; halving is exact."""
        return 0.0


class NegativeLogLikelihoodBackward(
    Labelled,
    ProgramStep,
    kinds=(
        "masked_lm_loss_of_log_probs_backward",
        "next_sentence_loss_of_log_probs_backward",
    ),
):
    """∂L/∂l = −w onehot(label) / N at the N labelled rows, 0 elsewhere; w (), l and result (..., C)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient, which does not depend on l."""
        log_probs, labels = self.rows
        return parents[0] * self.spread(self.minus_onehot(np.zeros_like(log_probs)) / len(labels))


class TargetLossBackward(Targeted, ProgramStep):
    """∂L/∂x = w ∂l/∂x / N; w (), x and result (B, C)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient."""
        w, x = parents
        return self.slope(x) * (w / self.logits.size)


class SquaredErrorBackward(Squared, TargetLossBackward, kinds=("regression_loss_backward",)):
    """∂L/∂x = 2w (x − t) / N."""


class BinaryCrossEntropyBackward(BinaryEntropy, TargetLossBackward, kinds=("multi_label_loss_backward",)):
    """∂L/∂x = w (σ(x) − t) / N."""
