"""Fitted faults of the slots of keys and values: each is right, but in the place of another position."""

import numpy as np

from conformance.faults.attention import CONTEXT, SCORES
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, nearest_fit
from conformance.faults.fitted.rows import shifts
from conformance.model.batch import Ids
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.bilinear import split_heads


def _slots_shifted(step: Step, data: FitData) -> Fit | None:
    """Return the step with keys, or values, moved by one position, as by `shifts`."""
    *others, read = step.parents
    if read.shape[1] < LEAST_ROWS or not data.is_finite:
        return None
    moved = [(by, step.replaced(parents=(*others, x))) for by in (1, -1) for x in shifts(read, by)]
    return nearest_fit(step, data, moved, "positions")


def _keys_read(step: Step, data: FitData) -> Ids | None:
    """Return, for each position, the position whose key the scores read there, in all rows and heads; None if they overflow.

    It is the one whose correct scores are nearest. The distance Σ (a − e)²/s² over the judged scores of both keys, with the allowed
    error s, is computed without its constant term Σ a²/s²: by the products of e with a/s² and of e² with 1/s².
    """
    shape = step.value.shape
    precision = np.where(data.judged, 1.0 / np.broadcast_to(data.allowed, shape) ** 2, 0.0)
    weighted = np.where(data.judged, data.actual, 0.0) * precision
    if not np.isfinite(weighted).all():
        return None
    expected, weighted, precision = (np.moveaxis(x, -1, 0).reshape(shape[-1], -1) for x in (step.value, weighted, precision))
    distances = precision @ (expected**2).T - 2.0 * weighted @ expected.T
    return as_array(np.where(precision.any(1), distances.argmin(1), np.arange(shape[-1])), np.int64)


def _values_read(step: Step, data: FitData) -> Ids | None:
    """Return, for each position, the position whose values the context reads there, in all rows and heads; None if it overflows.

    The values that a head multiplies are estimated by ridge regression from P V′ = c over the judged queries of a row, with the
    probabilities P and the captured context c; the penalty is the ratio of the mean squares of the error that c may have and of
    the values. The position nearest to V′_j has the least sum of squared differences over all rows and heads. V′ is inaccurate in
    half formats, so positions are then replaced one by one as long as Σ (c − P V)² decreases.
    """
    probs, value = step.parents
    size, count = step.site.architecture.head_size, value.shape[1]
    values, context = split_heads(value, size), split_heads(np.where(data.judged, data.actual, 0.0), size)
    weights: Array = np.where(as_array(data.judged.any(-1))[:, None, :, None], probs, 0.0)
    if not np.isfinite(context).all():
        return None
    penalty = float((data.allowed**2).mean() / (values**2).mean())
    square = weights.swapaxes(-1, -2) @ weights
    solved = np.linalg.solve(
        square + penalty * np.eye(count), weights.swapaxes(-1, -2) @ context + penalty * values.mean(2, keepdims=True)
    )
    distances = ((solved[..., :, None, :] - values[..., None, :, :]) ** 2).sum((0, 1, 4))
    read = np.flatnonzero(weights.any(axis=(0, 1, 2)))
    places = np.arange(count)
    places[read] = distances.argmin(1)[read]
    return _descended(places, read, weights, context, values)


def _descended(places: Ids, read: Ids, weights: Array, context: Array, values: Array) -> Ids:
    """Return the positions that are read after each was replaced by the best one until none changes."""
    left = context - weights @ values[:, :, places]
    for _ in range(len(places)):
        before = places.copy()
        for j in read:
            column = weights[..., j]  # (B, h, Q)
            other = values - values[:, :, places[j], None]  # (B, h, S, d)
            gain = 2.0 * np.einsum("bhq,bhqd,bhkd->k", column, left, other, optimize=True)
            cost = np.einsum("bh,bhk->k", (column**2).sum(-1), (other**2).sum(-1))
            best = int((cost - gain).argmin())
            if best != places[j]:
                left -= column[..., None] * other[:, :, best, None]
                places[j] = best
        if (places == before).all():
            break
    return places


def _in_other_order(step: Step, data: FitData) -> Fit | None:
    """Return the scores with the keys, or the context with the values, of other positions, the same in all rows."""
    first, read = step.parents
    places = (_keys_read if step.site.activation.kind in SCORES else _values_read)(step, data)
    if places is None:
        return None
    moved = np.flatnonzero(places != np.arange(len(places)))
    if not len(moved):
        return None
    return Fit(step.replaced(parents=(first, read[:, places])), len(moved), "position", int(moved[0]))


FITTED_SLOTS = (
    Fitted("slots-shifted", SCORES | CONTEXT, "the keys, or the values, are moved by {value} position",
           "constructed", _slots_shifted, "a paged cache whose slots of keys or of values are off by one",
           equation="s_ij = q_i k_(j − n) / √d, or c_i = Σ_j p_ij v_(j − n)",
           fix="Write and read the key and the value of token s in the same slot."),
    Fitted("keys-reordered", SCORES | CONTEXT,
           "the keys, or the values, are in another order, the first that is moved at position {value}",
           "constructed", _in_other_order,
           "keys and values that are reordered for context parallelism or by a paged cache, without the mask", per_token=True,
           equation="s_ij = q_i k_π(j) / √d, or c_i = Σ_j p_ij v_π(j)",
           fix="Put the keys, the values and the mask in the same order."),
)  # fmt: skip
