"""Fitted faults of probabilities and context: softmax by blocks, rounded probabilities, windows after the softmax, unread keys."""

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.attention import CONTEXT, PROBS, keys_of, softmax
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted, Mask, nearest_fit
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step

LEVELS = (255, 256, 127, 128)  # Those of eight bits, with and without a sign.
QUERIES = 8  # A limit of the time only: a wrong number of unread keys leaves a residual that the judge does not accept.


def _block_softmax(s: Array, keys: Mask, size: int, *, averaged: bool) -> Array:
    """Return the softmax over each block of `size` keys, divided by the number of blocks if they are averaged."""
    length = s.shape[-1]
    starts = range(0, length, size)
    every = np.broadcast_to(keys, s.shape)
    blocks = [softmax(s[..., i : i + size], every[..., i : i + size]) for i in starts]
    return np.concatenate(blocks, -1) / (len(starts) if averaged else 1.0)


def _sizes(step: Step) -> list[int]:
    """Return the usual sizes of blocks of keys: divisors of their number, and powers of two."""
    length = step.value.shape[-1]
    return [n for n in range(2, length) if length % n == 0 or n.bit_count() == 1]


def _by_blocks(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over blocks of keys, of the size that is nearest: a divisor of the length or a power of two."""
    keys = keys_of(step)

    def of(size: int, *, averaged: bool) -> Step:
        return Altered(step, lambda inner: _block_softmax(inner.parents[0], keys, size, averaged=averaged))

    return nearest_fit(step, data, [(n, of(n, averaged=averaged)) for n in _sizes(step) for averaged in (True, False)], "keys")


def _running_softmax(s: Array, keys: Mask, size: int) -> Array:
    """Return exp(s_j − m_b) / Σ_k exp(s_k − m_b(k)), with m_b the largest score up to the end of the block b of the key."""
    masked = np.where(keys, s, -np.inf)
    starts = np.arange(0, s.shape[-1], size)
    largest = np.maximum.accumulate(np.maximum.reduceat(masked, starts, -1), -1)
    running = np.repeat(largest, np.diff([*starts, s.shape[-1]]), -1)
    weights = np.where(keys, np.exp(s - np.where(np.isfinite(running), running, 0.0)), 0.0)
    return np.asarray(weights / np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny))


def _not_rescaled(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over blocks of keys whose earlier blocks keep the maximum of their time, of the size that is nearest."""
    keys = np.broadcast_to(keys_of(step), step.value.shape)

    def of(size: int) -> Step:
        return Altered(step, lambda inner: _running_softmax(inner.parents[0], keys, size))

    return nearest_fit(step, data, [(n, of(n)) for n in _sizes(step)], "keys")


def _rounded(step: Step, data: FitData) -> Fit | None:
    """Return the probabilities rounded to multiples of 1/n, for the first n of `LEVELS` of which all are multiples.

    A probability that lies within the rounding error of a tie may be rounded either way.
    """

    def of(levels: int) -> Step:
        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            p = altered.inner.value * levels
            sigma = np.sqrt(altered.inner.roundings(arithmetic).variance()) * levels
            return np.where(np.abs(p - np.floor(p) - 0.5) <= data.largest * sigma, levels**-2.0, 0.0)

        return Altered(step, lambda inner: np.rint(inner.value * levels) / levels, slack)

    whole = next((n for n in LEVELS if _is_multiple(data, n)), None)
    return None if whole is None else Fit(of(whole), 1, "levels", whole)


def _is_multiple(data: FitData, levels: int) -> bool:
    """Return whether all judged probabilities are multiples of 1/levels within rounding errors, and some could have been others."""
    scaled, tolerance = data.actual[data.judged] * levels, data.largest * data.allowed[data.judged] * levels
    return bool((np.abs(scaled - np.rint(scaled)) <= tolerance).all() and (tolerance < 0.5).any())


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
            return np.asarray(softmax(s, np.broadcast_to(over, s.shape)) * (keys & near))

        return Altered(step, value)

    return nearest_fit(step, data, [(furthest, of(masked=masked)) for masked in (True, False)], "distance")


def _unread(step: Step, data: FitData) -> Fit | None:
    """Return the context without the last keys; their number is determined on a few queries of the row with the largest residual.

    Only the first head is used to determine the number.
    """
    probs, value = step.parents
    width, length = step.site.architecture.head_size, probs.shape[-1]
    left = np.where(data.judged, np.abs(data.actual - step.value), 0.0).sum(-1)
    row = int(left.sum(-1).argmax())
    some = np.sort(np.argsort(left[row])[-QUERIES:])
    sums = np.cumsum(probs[row, 0, some][..., None] * value[row, :, :width], 1)  # (queries, S, d)
    error = ((sums - data.actual[row, some][:, None, :width]) ** 2).sum((0, 2))
    unread = int(error[::-1].argmin())  # The fewest of those that fit equally, since masked keys add nothing.
    if not 0 < unread < length:
        return None
    read = np.arange(length) < length - unread
    return Fit(step.replaced(parents=(np.where(read, probs, 0.0), value)), 1, "keys", unread)


FITTED_PROBS = (
    Fitted("softmax-by-blocks", PROBS, "the softmax runs over each block of {value} keys, not over all keys", "constructed",
           _by_blocks, "a tiled softmax whose blocks do not share the maximum and the sum",
           equation="p_j = exp(s_j) / Σ exp(s_k) over the keys k of the block of j",
           fix="Divide by the sum over all unmasked keys."),
    Fitted("softmax-not-rescaled", PROBS, "sums over earlier blocks of {value} keys are not rescaled when the largest score grows",
           "constructed", _not_rescaled, "an online softmax without the factor exp(m_old − m_new)",
           equation="p_j = exp(s_j − m_b) / Σ_k exp(s_k − m_b(k)), m_b the largest score up to the end of block b",
           fix="Multiply the running sums by exp(m_old − m_new) whenever the running maximum grows."),
    Fitted("probabilities-rounded", PROBS, "the probabilities are multiples of 1/{value}", "constructed", _rounded,
           "probabilities quantised to eight bits", equation="p = round(n softmax(s)) / n",
           fix="Run without quantisation, or export without it."),
    Fitted("mask-window-after-softmax", PROBS,
           "probabilities more than {value} positions away are set to zero after the softmax, and the rest is not rescaled",
           "constructed", _window_after, "probabilities multiplied by a mask of a window",
           equation="p_ij = softmax(s)_ij if |i − j| ≤ w, else 0", fix="Let every token attend to all unmasked keys."),
    Fitted("keys-last-unread", CONTEXT, "the last {value} keys are not read", "constructed", _unread,
           "a loop over blocks of keys that leaves out the last or the incomplete one",
           equation="c_i = Σ p_ij v_j over the keys j < S − n", fix="Sum over all keys, including those of the last block."),
)  # fmt: skip
