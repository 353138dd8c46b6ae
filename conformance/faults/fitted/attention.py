"""Fitted mistakes of attention: masks, shared heads, softmax over a part of the keys, and sums of its rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from conformance.faults.attention import CONTEXT, PROBS, SCORES, keys_of, softmax
from conformance.faults.changes import Altered
from conformance.faults.edits import variant
from conformance.faults.fault import with_batch
from conformance.faults.fitted.differences import read_instead
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted, nearest_fit
from conformance.model.batch import Ids
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.softmax import Probabilities


def _judged_queries(step: Step) -> Mask:
    """Return which queries are no padding, (B, 1, S, 1)."""
    return step.site.batch.mask[:, None, :, None]


def _attended(step: Step, data: FitData) -> Mask | None:
    """Return which keys have nonzero probability for unmasked queries, (B, h, Q, S); None if the keys are an encoder's states.

    A query all of whose probabilities are equal attends to none: all of its scores are the same lowest number.
    """
    mask = step.site.batch.mask
    if data.actual.shape[-1] != mask.shape[-1] or "key" not in step.site.activation.axes:
        return None
    return as_array((data.actual >= np.finfo(np.float32).tiny) & _judged_queries(step) & ~_uniform(step, data))


def _uniform(step: Step, data: FitData) -> Mask:
    """Return which queries have equal probabilities for all keys where the right ones are not equal, (B, h, Q, 1)."""
    mean, error = 1.0 / data.actual.shape[-1], data.largest * data.allowed
    actual, right = ((np.abs(x - mean) <= error).all(-1, keepdims=True) for x in (data.actual, step.value))
    return as_array(actual & ~right)


def _mask(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with a mask for each query, or, if that is enough, with one for all queries, or for those of each head.

    Attended to are the keys that have nonzero probability for any query or head that has the mask. A number is fitted for each
    element of the mask that changes what any query attends to. A mask for each head leaves the keys of each query as they are.
    """
    attended, batch = _attended(step, data), step.site.batch
    if attended is None:
        return None
    for_all = np.where(batch.mask.any(1, keepdims=True), attended.any((1, 2)), batch.mask).astype(np.int64)  # (B, S)
    one = with_batch(step, attention_mask=for_all)
    each = keys_of(step) if batch.keys.shape[1] > 1 else keys_of(with_batch(step, attention_mask=None))

    def fit(faulty: Step, keys: Mask, over: tuple[int, ...], which: str) -> Fit:
        changed = (keys != keys_of(step)) & _judged_queries(step)
        free = int((changed.any(over) if over else changed).sum())
        return Fit(faulty, free, f"{which}, number of elements that differ", free)

    read = read_instead(for_all, batch.mask.astype(np.int64), np.ones_like(batch.mask))
    by_head, by_query = as_array(attended.any(2, keepdims=True) & each), as_array(attended.any(1, keepdims=True))
    uniform = _uniform(step, data)
    first = replace(fit(one, keys_of(one), (1, 2), ""), parameter=read[0], value=read[1])
    heads = fit(_over_keys(step, by_head, uniform), by_head, (2,), "one for each head")
    return replace(fit(_over_keys(step, by_query, uniform), by_query, (), "one for each query"), simpler=(first, heads))


def _over_keys(step: Step, keys: Mask, uniform: Mask) -> Step:
    """Return the softmax over other keys, which broadcast to (B, h, Q, S), and equal probabilities for some queries."""
    over = step.recast(variant(Probabilities, keys=lambda _: keys))
    return Altered(over, lambda inner: np.where(uniform, 1.0 / keys.shape[-1], inner.value)) if uniform.any() else over


def _groups(heads: int) -> Iterator[tuple[int, Ids]]:
    """Yield the size of a group and the head whose keys each head reads: the first of the group, or the group's or its own index.

    In the last case, heads are repeated in turn. Groups of all heads are the catalogue's `heads-share-first`.
    """
    j = np.arange(heads)
    for size in (n for n in range(2, heads) if heads % n == 0):
        yield size, j // size * size
        yield size, j // size
        yield size, j % (heads // size)


def _shared(step: Step, data: FitData) -> Fit | None:
    """Return the step in which heads share keys, or values, in the way that leaves least of the residual."""
    *others, last = step.parents
    parts = split_heads(last, step.site.architecture.head_size)
    tried = [(size, step.replaced(parents=(*others, merge_heads(parts[:, which])))) for size, which in _groups(parts.shape[1])]
    return nearest_fit(step, data, tried, "heads")


def _by_blocks(softmax_of_blocks: Callable[[Array, Mask, int], Array]) -> Callable[[Step, FitData], Fit | None]:
    """Return the fit of a softmax over blocks of keys, of the size that is nearest: a divisor of their number or a power of two."""

    def fit(step: Step, data: FitData) -> Fit | None:
        keys, length = np.broadcast_to(keys_of(step), step.value.shape), step.value.shape[-1]

        def of(size: int) -> Step:
            return Altered(step, lambda inner: softmax_of_blocks(inner.parents[0], keys, size))

        return nearest_fit(step, data, [(n, of(n)) for n in range(2, length) if length % n == 0 or n.bit_count() == 1], "keys")

    return fit


def _averaged(s: Array, keys: Mask, size: int) -> Array:
    """Return the softmax over each block of `size` keys, divided by the number of blocks."""
    starts = range(0, s.shape[-1], size)
    return np.concatenate([softmax(s[..., i : i + size], keys[..., i : i + size]) for i in starts], -1) / len(starts)


def _running(s: Array, keys: Mask, size: int) -> Array:
    """Return exp(s_j − m_b) / Σ_k exp(s_k − m_b(k)), with m_b the largest score up to the end of the block b of the key."""
    masked, starts = np.where(keys, s, -np.inf), np.arange(0, s.shape[-1], size)
    largest = np.maximum.accumulate(np.maximum.reduceat(masked, starts, -1), -1)
    running = np.repeat(largest, np.diff([*starts, s.shape[-1]]), -1)
    weights = np.where(keys, np.exp(s - np.where(np.isfinite(running), running, 0.0)), 0.0)
    return as_array(weights / np.maximum(weights.sum(-1, keepdims=True), TINY))


def _row_factors(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with each row multiplied by a factor that is fitted to the row; the largest |Σ p − 1| is reported."""
    right, used = step.value, data.judged & (step.value > 0.0)
    counts = used.sum(-1)
    if not data.is_finite or not (counts > 2).any() or np.median(counts[counts > 0]) <= 2.0:
        return None
    weight = np.where(used, 1.0 / np.square(data.allowed), 0.0)
    energy = (weight * right**2).sum(-1, keepdims=True)
    is_known = energy > 0.0
    energy = np.where(is_known, energy, 1.0)
    factor = np.where(is_known, (weight * right * data.actual).sum(-1, keepdims=True) / energy, 1.0)
    off, noise = np.abs(factor - 1.0), np.where(is_known, energy**-0.5, 0.0)
    at = int(np.argmax(off - data.threshold * noise))
    if off.flat[at] <= data.threshold * noise.flat[at]:
        return None
    faulty = Altered(step, lambda inner: factor * inner.value)
    return Fit(faulty, int(is_known.sum()), "error", float(off.flat[at]), float(noise.flat[at]))


FITTED_ATTENTION = (
    Fitted("mask-other", PROBS, "the equation holds with another mask than the batch's", _mask, unexposed_parents=True,
           estimates="the mask", is_description=True),
    Fitted("heads-share-keys", SCORES | CONTEXT, "the heads share keys, or values, in groups of {value}", _shared),
    Fitted("softmax-by-blocks", PROBS, "the softmax runs over each block of {value} keys, not over all keys",
           _by_blocks(_averaged)),
    Fitted("softmax-not-rescaled", PROBS,
           "sums over earlier blocks of {value} keys are not rescaled when the largest score grows", _by_blocks(_running)),
)  # fmt: skip

FITTED_SUMS = (
    Fitted("softmax-unnormalised", PROBS,
           "the equation holds with another divisor for each row: its sum differs from 1 by up to {value}", _row_factors,
           is_largest_error=True, per_token=True, is_description=True),
)  # fmt: skip
