"""Fitted faults of single tokens and heads: the right results, in the place of those of other tokens, of any row of the batch.

A cache of keys and values, a buffer that is written once for several chunks, and a reshape over rows and heads move results of
single tokens or heads. Each token whose result is wrong is matched with the token of the batch whose correct result is nearest.
"""

from collections.abc import Callable

import numpy as np

from conformance.faults.altered import Rearranged
from conformance.faults.attention import CONTEXT, SCORES
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted, Mask
from conformance.model.batch import Ids
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads

_AT_ONCE = 2**22  # Distances that are held at once, 32 MiB.

View = Callable[[Array], Array]  # Rearranges a result as matrices of which each row is moved as a whole.


def _nearest(actual: Array, expected: Array, allowed: Array, judged: Mask) -> Ids:
    """Return, for each row of `actual`, (N, F), the row of `expected`, (M, F), that is nearest on the judged elements.

    The distance Σ (a − e)²/s² over the judged elements, with the allowed error s, is computed without its constant term Σ a²/s²: by
    the products of e with a/s² and of e² with 1/s².
    """
    weight = np.where(judged, 1.0 / allowed**2, 0.0)
    weighted, squares = np.where(judged, actual, 0.0) * weight, expected**2
    found, each = np.empty(len(actual), np.int64), max(_AT_ONCE // max(len(expected), 1), 1)
    for start in range(0, len(actual), each):
        part = slice(start, start + each)
        found[part] = (weight[part] @ squares.T - 2.0 * weighted[part] @ expected.T).argmin(1)
    return found


def _places(data: FitData, value: Array, view: View) -> Ids | None:
    """Return, for each row of the view, the row from which its result comes; None if no wrong row is another one's result.

    A row without an error that is too large keeps its place, and so does one that is its own nearest.
    """
    actual, expected, allowed, judged = (
        view(np.broadcast_to(x, value.shape)) for x in (data.actual, value, data.allowed, data.judged)
    )
    with np.errstate(invalid="ignore"):
        wrong = (judged & ~(np.abs(actual - expected) <= data.largest * allowed)).any(1)
    places = np.arange(len(actual))
    if not wrong.any() or not np.isfinite(actual[judged]).all():
        return None
    places[wrong] = _nearest(actual[wrong], expected, allowed[wrong], judged[wrong])
    return None if (places == np.arange(len(places))).all() else places


def _by_token(x: Array) -> Array:
    """Return x, (B, S, H), as (B · S, H)."""
    return x.reshape(-1, x.shape[-1])


def _other_tokens(step: Step, data: FitData) -> Fit | None:
    """Return the step with, at each wrong token, the result of the token that is nearest."""
    shape = step.value.shape
    if step.site.activation.axes != ("batch", "position", "feature"):
        return None
    places = _places(data, step.value, _by_token)
    if places is None:
        return None
    moved = places != np.arange(len(places))
    rearranged = Rearranged(step, lambda x: _by_token(x)[places].reshape(shape))
    return Fit(rearranged, int(moved.sum()), "position", int(moved.argmax()) % shape[1])


def _other_heads(step: Step, data: FitData) -> Fit | None:
    """Return the context with, at each wrong head of a row, the result of the nearest head of any row."""
    size, value = step.site.architecture.head_size, step.value

    def by_head(x: Array) -> Array:
        heads = split_heads(x, size)
        return heads.reshape(heads.shape[0] * heads.shape[1], -1)

    places = _places(data, value, by_head)
    if places is None:
        return None
    heads, shape = value.shape[-1] // size, split_heads(value, size).shape
    moved = places != np.arange(len(places))
    rearranged = Rearranged(step, lambda x: merge_heads(by_head(x)[places].reshape(shape)))
    return Fit(rearranged, int(moved.sum()), "head", int(moved.argmax()) % heads)


def _by_key(x: Array) -> Array:
    """Return x, (B, h, Q, S), as (S, B · h · Q)."""
    return np.moveaxis(x, -1, 0).reshape(x.shape[-1], -1)


def _values_read(step: Step, data: FitData) -> Ids | None:
    """Return, for each position, the position whose values the context reads there, in all rows and heads; None if it is its own.

    The values that a head multiplies are estimated by ridge regression from P V′ = c over the judged queries of a row, with the
    probabilities P and the captured context c; the penalty is the ratio of the mean squares of the error that c may have and of
    the values. The position nearest to V′_j has the least sum of squared differences over all rows and heads. V′ is inaccurate in
    half formats, so positions are then replaced one by one as long as Σ (c − P V)² decreases.
    """
    probs, value = step.parents
    size, count = step.site.architecture.head_size, value.shape[1]
    values, context, allowed = (split_heads(np.broadcast_to(x, y.shape), size) for x, y in (
        (value, value), (data.actual, data.actual), (data.allowed, data.actual)))  # fmt: skip
    judged = data.judged.any(-1)[:, None, :, None]
    context, weights = np.where(judged, context, 0.0), np.where(judged, probs, 0.0)
    if not np.isfinite(context).all():
        return None
    penalty = float((allowed**2).mean() / (values**2).mean())
    square = weights.swapaxes(-1, -2) @ weights
    solved = np.linalg.solve(
        square + penalty * np.eye(count), weights.swapaxes(-1, -2) @ context + penalty * values.mean(2, keepdims=True)
    )
    distances = ((solved[..., :, None, :] - values[..., None, :, :]) ** 2).sum((0, 1, 4))
    weighted = weights.any((0, 1, 2))
    places = np.where(weighted, distances.argmin(1), np.arange(count))
    places = _descended(places, np.flatnonzero(weighted), weights, context, values)
    return None if (places == np.arange(count)).all() else places


def _descended(places: Ids, weighted: Ids, weights: Array, context: Array, values: Array) -> Ids:
    """Return the positions that are read after each was replaced by the best one until none changes."""
    left = context - weights @ values[:, :, places]
    for _ in range(len(places)):
        before = places.copy()
        for j in weighted:
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


def _other_order(step: Step, data: FitData) -> Fit | None:
    """Return the scores with the keys, or the context with the values, of other positions, the same in all rows."""
    is_scores = step.site.activation.kind in SCORES
    places = _places(data, step.value, _by_key) if is_scores else _values_read(step, data)
    if places is None:
        return None
    first, read = step.parents
    moved = places != np.arange(len(places))
    return Fit(step.replaced(parents=(first, read[:, places])), int(moved.sum()), "position", int(moved.argmax()))


TOKENS = (
    Fitted("slots-in-other-order", SCORES | CONTEXT,
           "the keys, or the values, are in another order, the first that is moved at position {value}",
           "constructed", _other_order,
           "keys and values that are reordered for context parallelism or by a paged cache, without the mask", loose=True,
           equation="s_ij = q_i k_π(j) / √d, or c_i = Σ_j p_ij v_π(j)",
           fix="Put the keys, the values and the mask in the same order."),
    Fitted("heads-other", CONTEXT, "the context is that of other rows and heads, the first of them at head {value}", "constructed",
           _other_heads, "a tensor of (B · h, S, d) that is reshaped as (h, B, S, d)", loose=True,
           equation="c_bi = c_π(b, i)", fix="Separate rows and heads in the order in which they were joined."),
    Fitted("tokens-other", frozenset({"linear", "context", "norm", "function"}),
           "tokens have the results of other tokens, the first of them at position {value}", "constructed", _other_tokens,
           "a cache whose prefix or block is another row's; one buffer for several chunks; rows that are packed and not put back",
           loose=True, equation="y_bs = f(x_π(b, s))", fix="Write the result of each token in that token's place."),
)  # fmt: skip
"""In the order of the number of places that can be moved."""
