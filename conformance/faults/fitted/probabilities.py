"""Fitted faults of probabilities and context: softmax by blocks, rounded probabilities, windows after the softmax, unread keys."""

from math import sqrt

import numpy as np

from conformance.faults.attention import CONTEXT, PROBS, keys_of, softmax
from conformance.faults.changes import Altered
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted, nearest_fit
from conformance.faults.quantized import distance_to_tie
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import split_heads

LEVELS = (255, 256, 127, 128)  # Those of eight bits, with and without a sign.
QUERIES = 8  # A limit of the time only: a wrong number of unread keys leaves a residual that the judge does not accept.


def _block_softmax(s: Array, keys: Mask, size: int, *, averaged: bool) -> Array:
    """Return the softmax over each block of `size` keys, divided by the number of blocks if they are averaged."""
    length = s.shape[-1]
    starts = range(0, length, size)
    every = np.broadcast_to(keys, s.shape)
    blocks = [softmax(s[..., i : i + size], every[..., i : i + size]) for i in starts]
    return np.concatenate(blocks, -1) / (len(starts) if averaged else 1.0)


def _sizes_of(over_keys: Array) -> list[int]:
    """Return the usual sizes of blocks of keys, the last axis: divisors of their number, and powers of two."""
    length = over_keys.shape[-1]
    return [n for n in range(2, length) if length % n == 0 or n.bit_count() == 1]


def _by_blocks(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over blocks of keys, of the size that is nearest: a divisor of the length or a power of two."""
    keys = keys_of(step)

    def of(size: int, *, averaged: bool) -> Step:
        return Altered(step, lambda inner: _block_softmax(inner.parents[0], keys, size, averaged=averaged))

    tried = [(n, of(n, averaged=averaged)) for n in _sizes_of(step.value) for averaged in (True, False)]
    return nearest_fit(step, data, tried, "keys")


def _running_softmax(s: Array, keys: Mask, size: int) -> Array:
    """Return exp(s_j − m_b) / Σ_k exp(s_k − m_b(k)), with m_b the largest score up to the end of the block b of the key."""
    masked = np.where(keys, s, -np.inf)
    starts = np.arange(0, s.shape[-1], size)
    largest = np.maximum.accumulate(np.maximum.reduceat(masked, starts, -1), -1)
    running = np.repeat(largest, np.diff([*starts, s.shape[-1]]), -1)
    weights = np.where(keys, np.exp(s - np.where(np.isfinite(running), running, 0.0)), 0.0)
    return as_array(weights / np.maximum(weights.sum(-1, keepdims=True), TINY))


def _not_rescaled(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over blocks of keys whose earlier blocks keep the maximum of their time, of the size that is nearest."""
    keys = np.broadcast_to(keys_of(step), step.value.shape)

    def of(size: int) -> Step:
        return Altered(step, lambda inner: _running_softmax(inner.parents[0], keys, size))

    return nearest_fit(step, data, [(n, of(n)) for n in _sizes_of(step.value)], "keys")


def _rounded(step: Step, data: FitData) -> Fit | None:
    """Return the probabilities rounded to multiples of 1/n, for the nearest n of `LEVELS` of which all are multiples.

    n is compared by the median distance: the sum of squares consists of the few ties that were rounded the other way. A probability
    that lies within the rounding error of a tie may be rounded either way. The largest is 1 or, if 0 is one of n levels, (n − 1)/n.
    """

    def of(levels: int, largest: int) -> Step:
        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            p = altered.inner.value * levels
            sigma = np.sqrt(altered.inner.roundings(arithmetic).variance()) * levels
            return np.where(distance_to_tie(p) <= data.largest * sigma, levels**-2.0, 0.0)

        return Altered(step, lambda inner: np.minimum(np.rint(inner.value * levels), largest) / levels, slack)

    def distance(levels: int) -> float:
        left = np.abs(data.actual - np.rint(step.value * levels) / levels) / data.allowed
        return float(np.median(left[data.judged]))

    whole = min((n for n in LEVELS if _is_multiple(data, n)), key=distance, default=0)
    return nearest_fit(step, data, [(whole, of(whole, n)) for n in (whole, whole - 1)], "levels") if whole else None


def _is_multiple(data: FitData, levels: int) -> bool:
    """Return whether all judged probabilities are multiples of 1/levels within rounding errors, and some could have been others."""
    scaled, tolerance = data.actual[data.judged] * levels, data.largest * data.allowed[data.judged] * levels
    return bool((np.abs(scaled - np.rint(scaled)) <= tolerance).all() and (tolerance < 0.5).any())


def _greatest(step: Step, data: FitData) -> Fit | None:
    """Return the probabilities of which only the k greatest of a query are kept, as they are or divided by their sum.

    k is the most frequent number of nonzero probabilities of a query that has zeros at its keys. Those that cannot be distinguished
    from the k-th may be kept or not.
    """
    keys = np.broadcast_to(keys_of(step), step.value.shape) & data.judged
    kept_keys = ((data.actual != 0.0) & keys).sum(-1)
    count = int(np.bincount(kept_keys[kept_keys < keys.sum(-1)], minlength=1).argmax())
    if not count:
        return None
    least = np.sort(step.value, -1)[..., -count, None]
    tied = np.abs(step.value - least) <= data.largest * data.allowed
    kept, several = step.value >= least, tied.sum(-1, keepdims=True) > 1

    def of(*, rescaled: bool) -> Step:
        def value(inner: Step) -> Array:
            p = np.where(kept, inner.value, 0.0)
            return as_array(p / np.maximum(p.sum(-1, keepdims=True), TINY) if rescaled else p)

        return Altered(step, value, lambda altered, _: np.where(tied & several, altered.inner.value**2, 0.0))

    return nearest_fit(step, data, [(count, of(rescaled=rescaled)) for rescaled in (False, True)], "keys")


def _filled(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over all keys with the constant c in place of masked scores, c = s_j + log(p_i / p_j) at masked keys i.

    j is the key of the largest probability. The masked keys of a query have one value of c, up to rounding, and share the error of
    p_j: c is the mean over queries of its median over their masked keys, and its deviation that of this mean. None is returned if
    masked keys get no probability.
    """
    s, p = step.parents[0], data.actual
    keys = np.broadcast_to(keys_of(step), p.shape)
    attended = np.where(keys, p, 0.0)
    best = attended.argmax(-1)[..., None]
    size, score = (np.take_along_axis(x, best, -1) for x in (attended, s))
    some = ~keys & (p > 0.0) & (size > 0.0) & data.judged.any(-1, keepdims=True)
    if not some.any() or not np.isfinite(p).all():
        return None
    log_ratio = np.log(np.where(some, p, 1.0) / np.where(size > 0.0, size, 1.0))
    of_query = np.nanmedian(np.where(some, score + log_ratio, np.nan)[some.any(-1)], axis=-1)
    found, deviation = float(of_query.mean()), float(of_query.std(ddof=1)) / sqrt(of_query.size) if of_query.size > 1 else 0.0

    def value(inner: Step) -> Array:
        scores = np.where(keys, inner.parents[0], found)
        return softmax(scores, np.ones_like(keys))

    return Fit(Altered(step, value), 1, "score", found, deviation)


def _window_after(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with probabilities beyond a window set to zero afterwards; the window is the furthest nonzero one."""
    mask = step.site.batch.mask
    if data.actual.shape[-1] != mask.shape[1] or "key" not in step.site.activation.axes or step.site.activation.causal:
        return None
    length = mask.shape[1]
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    both = mask[:, None, :, None] & mask[:, None, None, :]
    nonzero = (data.actual >= np.finfo(np.float32).tiny) & both
    furthest = int(np.where(nonzero, distance, 0).max())
    if furthest >= np.where(both, distance, 0).max():
        return None
    near, keys = distance <= furthest, keys_of(step)

    def of(*, masked: bool) -> Step:
        def value(inner: Step) -> Array:
            s = inner.parents[0]
            over = keys if masked else np.ones_like(keys)
            return as_array(softmax(s, np.broadcast_to(over, s.shape)) * (keys & near))

        return Altered(step, value)

    return nearest_fit(step, data, [(furthest, of(masked=masked)) for masked in (True, False)], "distance")


def _accumulated(step: Step, data: FitData) -> Fit | None:
    """Return the context whose sum over earlier blocks of keys keeps the maximum of its time, as `_not_rescaled`, for right p.

    With the largest probability up to the end of block b in place of the largest score, exp(m − m_b) is a ratio of probabilities.
    In blocks before the first unmasked key, masked keys are skipped, or are themselves the largest, exp(m_b − m_b) = 1. The sum of
    the weights is rescaled, so that the context is divided by the right one, or is not either.
    """
    probs, value = step.parents
    largest = np.maximum.accumulate(probs, -1)
    last = np.arange(probs.shape[-1])

    def of(size: int, *, skipped: bool, divided: bool) -> Step:
        so_far = largest[..., np.minimum((last // size + 1) * size - 1, last[-1])]  # up to the end of the block of each key
        ratio = largest[..., -1:] / np.where(so_far > 0.0, so_far, 1.0)
        weights = np.where((so_far > 0.0) | skipped, probs, 1.0) * ratio
        total = weights.sum(-1, keepdims=True) if divided else np.ones(1)
        return step.replaced(parents=(weights / np.where(total > 0.0, total, 1.0), value))

    both = (True, False)
    tried = [(n, of(n, skipped=skipped, divided=divided)) for n in _sizes_of(probs) for skipped in both for divided in both]
    return nearest_fit(step, data, tried, "keys")


def _averaged(step: Step, data: FitData) -> Fit | None:
    """Return the context averaged over blocks of keys, in each of which the probabilities are divided by their sum."""
    probs, value = step.parents

    def of(size: int) -> Step:
        starts = np.arange(0, probs.shape[-1], size)
        totals = np.add.reduceat(probs, starts, -1)
        total = np.repeat(totals, np.diff([*starts, probs.shape[-1]]), -1)
        return step.replaced(parents=(probs / np.where(total > 0.0, total, 1.0) / len(starts), value))

    return nearest_fit(step, data, [(n, of(n)) for n in _sizes_of(probs)], "keys")


def _unread(step: Step, data: FitData) -> Fit | None:
    """Return the context without the last keys, whose number is that of a few judged queries of the row that is most wrong."""
    probs, value = step.parents
    length = probs.shape[-1]
    left = np.where(data.judged, np.square((data.actual - step.value) / data.allowed), 0.0).sum(-1)
    row = int(left.sum(-1).argmax())
    judged = np.flatnonzero(data.judged[row].any(-1))
    some = judged[np.argsort(left[row, judged])[-QUERIES:]]
    size = step.site.architecture.head_size
    actual, allowed, read = (split_heads(x[row : row + 1], size)[0] for x in (data.actual, data.allowed, value))  # (h, S, d)
    sums = np.cumsum(probs[row][:, some][..., None] * read[:, None], 2)  # (h, queries, S, d)
    error = np.square((sums - actual[:, some][:, :, None]) / allowed[:, some][:, :, None]).sum((0, 1, 3))
    unread = int(error[::-1].argmin())  # The fewest of those that fit equally, since masked keys add nothing.
    if not 0 < unread < length:
        return None
    kept = np.arange(length) < length - unread
    return Fit(step.replaced(parents=(np.where(kept, probs, 0.0), value)), 1, "keys", unread)


FITTED_PROBS = (
    *(Fitted("softmax-by-blocks", kinds, "the softmax runs over each block of {value} keys, not over all keys", "constructed",
             fit, "a tiled softmax, or one of several devices, whose blocks do not share the maximum and the sum",
             equation="p_j = exp(s_j) / Σ exp(s_k) over the keys k of the block of j",
             fix="Divide by the sum over all unmasked keys.")
      for kinds, fit in ((PROBS, _by_blocks), (CONTEXT, _averaged))),
    *(Fitted("softmax-not-rescaled", kinds,
             "sums over earlier blocks of {value} keys are not rescaled when the largest score grows",
             "constructed", fit, "an online softmax without the factor exp(m_old − m_new)",
             equation="p_j = exp(s_j − m_b) / Σ_k exp(s_k − m_b(k)), m_b the largest score up to the end of block b",
             fix="Multiply the running sums by exp(m_old − m_new) whenever the running maximum grows.")
      for kinds, fit in ((PROBS, _not_rescaled), (CONTEXT, _accumulated))),
    Fitted("softmax-top-k", PROBS, "only the {value} greatest probabilities of a query are kept", "constructed",
           _greatest, "sparse attention to the best keys (top-k), left on",
           equation="p_j = softmax(s)_j for the k greatest, else 0, divided by their sum or not",
           fix="Let every token attend to all unmasked keys."),
    Fitted("probabilities-rounded", PROBS, "the probabilities are multiples of 1/{value}", "constructed", _rounded,
           "probabilities quantised to eight bits", equation="p = round(n softmax(s)) / n",
           fix="Run without quantisation, or export without it."),
    Fitted("mask-filled", PROBS, "masked scores are replaced by {value}, which is not low enough", "constructed", _filled,
           "a mask that is limited to the range of quantised scores, or a number that is too small in magnitude",
           equation="p_j ∝ exp(c) at masked keys", fix="Replace masked scores by the lowest number of the format, or by −∞.",
           of_one_number=True),
    Fitted("mask-window-after-softmax", PROBS,
           "probabilities more than {value} positions away are set to zero after the softmax, and the rest is not rescaled",
           "constructed", _window_after, "probabilities multiplied by a mask of a window",
           equation="p_ij = softmax(s)_ij if |i − j| ≤ w, else 0", fix="Let every token attend to all unmasked keys."),
    Fitted("keys-last-unread", CONTEXT, "the last {value} keys are not read", "constructed", _unread,
           "a loop over blocks of keys that leaves out the last or the incomplete one",
           equation="c_i = Σ p_ij v_j over the keys j < S − n", fix="Sum over all keys, including those of the last block."),
)  # fmt: skip
