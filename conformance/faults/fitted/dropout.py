"""The fitted fault of dropout that is active in evaluation, read off the candidate's array."""

from collections.abc import Callable

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted
from conformance.numerics.formats import Array
from conformance.oracle import Step

Fitting = Callable[[Step, FitData], Fit | None]

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


def _dropped(step: Step, data: FitData) -> Fit | None:
    """Return the step with each element either zero or divided by 1 − p.

    None is returned unless the share of zeros is p to within the deviation of n independent draws and the error of p: with the
    factor f = 1/(1 − p) known to a relative error e, p is known to e (1 − p). Where elements are zero for another reason, such as
    all but the largest, the others are scaled by another factor, or not at all.
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
    if abs(dropped.sum() / count - p) > data.threshold * (np.sqrt(p * (1.0 - p) / count) + error):
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
    significantly.
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
        found = slope * centred + summed.mean(-1, keepdims=True)
        again = np.abs(found - skip - x) <= np.abs(found - skip)
        if (again == kept).all():
            break
        kept = again
    distinct = data.judged & (np.abs(gamma * x) > 2.0 * data.threshold * data.allowed * np.abs(slope))
    count = int(distinct.sum())
    if not count:
        return None
    share = float((distinct & ~kept).sum()) / count
    if not share > 0.0 or abs(share - p) > data.threshold * np.sqrt(p * (1.0 - p) / count):
        return None
    changed: Array = kept * x
    return fit_of_share(step.replaced(parents=(changed, skip)), share, count)


def active(kinds: frozenset[str], fit: Fitting) -> Fitted:
    """Return the fault of active dropout at steps of these kinds."""
    return Fitted(
        "dropout-active", kinds, "dropout is active, with p = {value}", "transformers#695, google-research/bert#857", fit,
        "eval() was not called", equation="y = x / (1 − p) or 0, at random", fix="Call eval() before the forward pass.",
        of_one_number=True,
    )  # fmt: skip


FITTED_DROPOUT = (
    active(frozenset({"copy", "probs", "linear", "norm"}), _dropped),
    active(frozenset({"norm"}), _dropped_before_sum),
)
