"""The fitted fault of dropout that is active in evaluation, read off the candidate's array.

Zeros alone are no evidence: a clip of negative numbers and outputs that are left out make zeros as well. With dropout, the dropped
elements among all, and among positive, negative, large and small numbers, are binomial with the same p; neighbours along an axis
are both dropped or both kept with probability p² + (1 − p)².
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted
from conformance.numerics.formats import Array, Mask, neighbours
from conformance.numerics.thresholds import BinomialCount, sidak_share
from conformance.oracle import Step

_CLOSE = 2.0**-7  # Relative tolerance: one rounding to bfloat16.
_SWEEPS = 32  # The largest number of alternating estimates of the dropped elements and of the norm's statistics.


def _share(step: Step, factor: float) -> float:
    """Return p with 1/(1 − p) = factor, or a dropout rate of the config if it agrees to within a rounding to bfloat16."""
    a = step.site.architecture
    of_config = (p for p in (a.hidden_dropout_prob, a.attention_probs_dropout_prob) if abs(factor * (1.0 - p) - 1.0) <= _CLOSE)
    return next(of_config, 1.0 - 1.0 / factor)


def fit_of_share(step: Step, share: float, count: int) -> Fit:
    """Return the fit of a step in which this share of `count` elements is dropped."""
    return Fit(step, 1, "p", share, float(np.sqrt(share * (1.0 - share) / count)))


@dataclass(frozen=True, eq=False)
class Dropped:
    """The elements of an array that are dropped.

    Attributes:
        dropped: whether each element is dropped.
        known: the elements at which this is known.
        right: the numbers before dropout.
        p, error: the probability with which an element is dropped, and the largest error of p.
    """

    dropped: Mask
    known: Mask
    right: Array
    p: float
    error: float = 0.0

    def is_random(self, chance: float) -> bool:
        """Return whether all counts have the probability p to within its error, but for this chance."""
        counts = list(self._counts())
        alpha = sidak_share(len(counts), chance)
        return all(count.is_chance(alpha) for count in counts)

    def _counts(self) -> Iterator[BinomialCount]:
        """Yield the counts of dropped elements, of all and of groups of numbers, and of neighbours that agree along each axis."""
        lowest, highest = max(self.p - self.error, 0.0), min(self.p + self.error, 1.0)
        size = np.abs(self.right)
        large = size > (np.median(size[self.known]) if self.known.any() else 0.0)
        for group in (np.ones_like(self.known), self.right > 0.0, self.right < 0.0, large, ~large):
            yield _count(self.dropped, self.known & group, lowest, highest)
        agreements = [p**2 + (1.0 - p) ** 2 for p in (lowest, float(np.clip(0.5, lowest, highest)), highest)]
        for axis in range(self.known.ndim):
            (first, second), known = neighbours(self.dropped, axis), np.logical_and(*neighbours(self.known, axis))
            yield _count(first == second, known, min(agreements), max(agreements))


def _count(successes: Mask, trials: Mask, lowest: float, highest: float) -> BinomialCount:
    """Return the count of successes among the trials, with the probability between two that is nearest to its share."""
    count, total = int((successes & trials).sum()), int(trials.sum())
    return BinomialCount(count, total, float(np.clip(count / max(total, 1), lowest, highest)))


def _dropped(step: Step, data: FitData) -> Fit | None:
    """Return the step with each element either zero or divided by 1 − p.

    None is returned unless the zeros are random to within the error of p: with the factor f = 1/(1 − p) known to a relative error
    e, p is known to e (1 − p). Where elements are zero for another reason, such as all but the largest, the others are scaled by
    another factor, or not at all. Numbers below the allowed error may be zero because they are rounded.
    """
    right = step.value
    kept = data.judged & (data.actual != 0.0) & (right != 0.0)
    dropped = data.judged & (data.actual == 0.0) & (right != 0.0)
    if not kept.any() or not dropped.any():
        return None
    factor = float(np.median(data.actual[kept] / right[kept]))
    if factor <= 1.0:
        return None
    count, by = int(kept.sum() + dropped.sum()), 1.0 / (1.0 - _share(step, factor))
    p, error = 1.0 - 1.0 / by, float(np.median(data.allowed[kept] / np.abs(right[kept]))) / factor
    known = (kept | dropped) & (np.abs(right) > data.allowed)
    if not Dropped(dropped, known, right, p, data.threshold * error).is_random(data.chance):
        return None
    if step.site.activation.kind != "copy":
        return fit_of_share(Altered(step, lambda inner: np.where(dropped, 0.0, by * inner.value)), 1.0 - 1.0 / by, count)
    # Subnormal numbers have a larger relative error; `allowed` is the error of the largest element.
    close = np.abs(data.actual - factor * right) <= np.abs(factor * right) * _CLOSE + data.allowed
    if not close[kept].all():
        return None
    return fit_of_share(Altered(step, lambda _: np.where(data.judged, data.actual, right)), 1.0 - 1.0 / factor, count)


def _dropped_before_sum(step: Step, data: FitData) -> Fit | None:
    """Return the norm of a sub-layer's result with each element either zero or divided by 1 − p, for the config's p.

    Dropout acts before the residual is added. With u = (y − β)/γ, the sum is a u + b in each row, and each of its elements is one
    of two numbers, for a dropped or a kept element. The choice for each element and a and b are estimated alternately. None is
    returned unless the share of dropped elements agrees with p to within noise, among those whose dropping changes the result
    significantly, and these are random.
    """
    p, gamma = step.site.architecture.hidden_dropout_prob, step.site.parameters["weight"]
    if len(step.parents) != 2 or not 0.0 < p < 1.0 or (gamma == 0.0).any():
        return None
    x, skip = step.parents[0] / (1.0 - p), step.parents[1]
    normal = (data.actual - step.site.parameters["bias"]) / gamma
    centred = normal - normal.mean(-1, keepdims=True)
    energy = np.maximum((centred**2).sum(-1, keepdims=True), TINY)
    kept = np.ones(x.shape, np.bool_)
    for _ in range(_SWEEPS):
        summed = kept * x + skip
        slope = (centred * summed).sum(-1, keepdims=True) / energy
        estimate = slope * centred + summed.mean(-1, keepdims=True)
        again = np.abs(estimate - skip - x) <= np.abs(estimate - skip)
        if (again == kept).all():
            break
        kept = again
    distinct = data.judged & (np.abs(gamma * x) > 2.0 * data.threshold * data.allowed * np.abs(slope))
    count = int(distinct.sum())
    if not count:
        return None
    share = float((distinct & ~kept).sum()) / count
    if not share > 0.0 or not Dropped(~kept, distinct, x, p).is_random(data.chance):
        return None
    changed: Array = kept * x
    return fit_of_share(step.replaced(parents=(changed, skip)), share, count)


def _active(step: Step, data: FitData) -> Fit | None:
    """Return the step with dropout of its result, or of the sub-layer's result that a norm reads."""
    before = _dropped_before_sum(step, data) if step.site.activation.kind == "norm" else None
    fits = [fit for fit in (_dropped(step, data), before) if fit]
    return replace(fits[-1], simpler=tuple(fits[:-1])) if fits else None


FITTED_DROPOUT = (
    Fitted("dropout-active", frozenset({"copy", "probs", "linear", "norm"}), "dropout is active, with p = {value}", _active),
)
