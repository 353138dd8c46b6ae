"""Dropout that is on in evaluation, read off the candidate's own array."""

from collections.abc import Callable

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fit import Fit, FitData, Fitted
from conformance.numerics.formats import Array
from conformance.oracle import Step

Fitting = Callable[[Step, FitData], Fit | None]

_CLOSE = 2.0**-7  # relative: one rounding of bfloat16
_SWEEPS = 32  # at the most: alternating estimates of what was dropped and of what the norm divided by, until neither changes


def _share(step: Step, factor: float) -> float:
    """The p of 1/(1 − p) = factor: one of the config's where that is as near as bfloat16 can tell, else the factor's own."""
    a = step.site.architecture
    of_config = (p for p in (a.hidden_dropout_prob, a.attention_probs_dropout_prob) if abs(factor * (1.0 - p) - 1.0) <= _CLOSE)
    return next(of_config, 1.0 - 1.0 / factor)


def _fit(step: Step, share: float, count: int) -> Fit:
    return Fit(step, 1, "p", share, float(np.sqrt(share * (1.0 - share) / count)))


def _dropped(step: Step, seen: FitData) -> Fit | None:
    """Each element zero, or the right one over 1 − p."""
    right = step.value
    kept = seen.judged & (seen.actual != 0.0) & (right != 0.0)
    dropped = seen.judged & (seen.actual == 0.0) & (right != 0.0)
    if not kept.any() or not dropped.any():
        return None
    factor = float(np.median(seen.actual[kept] / right[kept]))
    if factor <= 1.0:
        return None
    count, by = int(kept.sum() + dropped.sum()), 1.0 / (1.0 - _share(step, factor))
    if step.site.activation.kind != "copy":
        return _fit(Altered(step, lambda inner: np.where(dropped, 0.0, by * inner.value)), 1.0 - 1.0 / by, count)
    close = np.abs(seen.actual - factor * right) <= np.abs(factor * right) * _CLOSE
    if not close[kept].all():
        return None
    return _fit(Altered(step, lambda _: np.where(seen.judged, seen.actual, right)), 1.0 - 1.0 / factor, count)


def _dropped_before_sum(step: Step, seen: FitData) -> Fit | None:
    """Of the sub-layer's result each element zero or over 1 − p, before the residual is added: p is the config's.

    With u = (y − β)/γ the sum is a u + b in each row, and each of its elements is one of two numbers: which, and a and b, are
    estimated from each other in turn. As many must be dropped as p says, of those that would move the result beyond noise.
    """
    p, gamma = step.site.architecture.hidden_dropout_prob, step.site.parameters["weight"]
    if len(step.parents) != 2 or not 0.0 < p < 1.0 or (gamma == 0.0).any():
        return None
    x, skip = step.parents[0] / (1.0 - p), step.parents[1]
    normal = (seen.actual - step.site.parameters["bias"]) / gamma
    centred = normal - normal.mean(-1, keepdims=True)
    energy = np.maximum((centred**2).sum(-1, keepdims=True), np.finfo(np.float64).tiny)
    kept = np.ones(x.shape, np.bool_)
    for _ in range(_SWEEPS):
        summed = kept * x + skip
        slope = (centred * summed).sum(-1, keepdims=True) / energy
        found = slope * centred + summed.mean(-1, keepdims=True)
        again = np.abs(found - skip - x) <= np.abs(found - skip)
        if (again == kept).all():
            break
        kept = again
    distinct = seen.judged & (np.abs(gamma * x) > 2.0 * seen.threshold * seen.allowed * np.abs(slope))
    count = int(distinct.sum())
    if not count:
        return None
    share = float((distinct & ~kept).sum()) / count
    if not share > 0.0 or abs(share - p) > seen.threshold * np.sqrt(p * (1.0 - p) / count):
        return None
    changed: Array = kept * x
    return _fit(step.again(parents=(changed, skip)), share, count)


def _dropout(kinds: frozenset[str], fit: Fitting) -> Fitted:
    return Fitted(
        "dropout-active", kinds, "dropout is active, with p = {value}", "transformers#695, google-research/bert#857", fit,
        "eval() was not called", equation="y = x / (1 − p) or 0, at random", fix="Call eval() before the forward pass.",
    )  # fmt: skip


FITTED_DROPOUT = (
    _dropout(frozenset({"copy", "probs", "linear", "norm"}), _dropped),
    _dropout(frozenset({"norm"}), _dropped_before_sum),
)
