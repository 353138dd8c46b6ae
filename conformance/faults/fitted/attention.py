"""Fitted faults of attention: masks, zero heads and biases, read off the candidate's array."""

import numpy as np

from conformance.faults.attention import PROBS, SCORES, keys_of
from conformance.faults.changes import Altered
from conformance.faults.fault import with_batch
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.fitted.lookup_words import read_instead
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.softmax import Probabilities

_MASKS = "Use the attention_mask of each call, over the keys and for all heads; export with the mask as an input."


def _attended(step: Step, data: FitData) -> Mask | None:
    """Return which keys have nonzero probability for unmasked queries, (B, h, Q, S); None if the keys are an encoder's states."""
    mask = step.site.batch.mask
    if data.actual.shape[-1] != mask.shape[-1] or "key" not in step.site.activation.axes:
        return None
    return as_array((data.actual >= np.finfo(np.float32).tiny) & _judged_queries(step))


def _judged_queries(step: Step) -> Mask:
    """Return which queries are no padding, (B, 1, S, 1)."""
    return step.site.batch.mask[:, None, :, None]


def _changed(step: Step, keys: Mask) -> Mask:
    """Return where queries that are no padding attend to another key among `keys` than in the right step, (B, h, Q, S)."""
    return as_array((keys != keys_of(step)) & _judged_queries(step))


def _other_mask(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with one mask for all queries: the keys that have nonzero probability for any head and query.

    A number is fitted for each token whose mask changes what any query attends to.
    """
    mask, attended = step.site.batch.mask, _attended(step, data)
    if attended is None:
        return None
    other = np.where(mask.any(1, keepdims=True), attended.any((1, 2)), mask)  # (B, S)
    read = read_instead(other.astype(np.int64), mask.astype(np.int64), np.ones_like(mask))
    faulty = with_batch(step, attention_mask=other.astype(np.int64))
    return Fit(faulty, int(_changed(step, keys_of(faulty)).any((1, 2)).sum()), *read)


def _last_hidden(step: Step, data: FitData) -> Fit | None:
    """Return the softmax without the last keys: those after the last key that has nonzero probability in any row.

    None is returned unless a query attends to a part of its keys: without any key, nothing is known of its mask.
    """
    attended, keys = _attended(step, data), keys_of(step)
    if attended is None:
        return None
    length = keys.shape[-1]
    read = int(np.flatnonzero(attended.any((0, 1, 2))).max(initial=-1)) + 1
    kept = keys & (np.arange(length) < read)
    if not (_changed(step, kept).any(-1) & kept.any(-1)).any():
        return None
    return Fit(_over_keys(step, kept), 1, "keys", length - read)


def _mask_of_heads(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with a mask for each head: the keys that have nonzero probability for any of its queries.

    They remain limited to those of each query, where these differ.
    """
    attended = _attended(step, data)
    if attended is None:
        return None
    keys = as_array(attended.any(2, keepdims=True) & _keys_of_queries(step))
    return Fit(_over_keys(step, keys), int(_changed(step, keys).any(2).sum()))


def _keys_of_queries(step: Step) -> Mask:
    """Return the keys of each query by a mask that differs between queries, else by the order of a decoder's tokens alone."""
    if step.site.batch.keys.shape[1] > 1:
        return keys_of(step)
    return keys_of(with_batch(step, attention_mask=None))


def _mask_of_queries(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with a mask for each query: the keys that have nonzero probability for any head."""
    attended = _attended(step, data)
    if attended is None:
        return None
    keys = as_array(attended.any(1, keepdims=True))
    return Fit(_over_keys(step, keys), int(_changed(step, keys).sum()))


def _window(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over the unmasked keys within a window: the largest distance at which any key has nonzero probability."""
    attended, keys = _attended(step, data), keys_of(step)
    if attended is None:
        return None
    length = keys.shape[-1]
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    furthest = int(np.where(attended, distance, 0).max())
    if furthest >= np.where(keys & _judged_queries(step), distance, 0).max():
        return None
    return Fit(_over_keys(step, keys & (distance <= furthest)), 1, "distance", furthest)


def _over_keys(step: Step, keys: Mask) -> Step:
    """Return the softmax over other keys, which broadcast to (B, h, Q, S)."""

    class OverKeys(Probabilities):
        @property
        def keys(self) -> Mask:
            return keys

    return step.recast(OverKeys)


def _zero_heads(step: Step, data: FitData) -> Fit | None:
    """Return the step, (B, S, H) or (B, h, S, S), with zeros in the heads whose judged elements are all zero in the candidate.

    Heads in which they are all zero in the correct result as well are not counted.
    """
    row = step.site.activation
    shape, axes = step.value.shape, (0, 2, 3)
    if "head" not in row.axes:
        if row.kind != "context":
            return None
        shape, axes = (*shape[:-1], -1, step.site.architecture.head_size), (0, 1, 3)
    zero, right = (~(data.judged & (y != 0.0)).reshape(shape).any(axes, keepdims=True) for y in (data.actual, step.value))
    if zero.all() or not (zero & ~right).any():
        return None
    zero &= ~right
    without = Altered(step, lambda inner: np.where(zero, 0.0, inner.value.reshape(shape)).reshape(inner.value.shape))
    return Fit(without, int(zero.sum()), "head", int(zero.argmax()))


def _by_distance(step: Step, data: FitData) -> Fit | None:
    """Return the scores with a bias for each head and each distance i − j of query and key.

    Score and bias may be rounded before they are added. None is returned unless the Bayesian information criterion prefers these
    biases to none, to one for all scores and to one for each head (Schwarz 1978): with n judged elements, Σ e² + ln n for each
    bias is less.
    """
    if "key" not in step.site.activation.axes:
        return None
    heads, length = step.value.shape[1], step.value.shape[-1]
    distance = np.arange(length)[:, None] - np.arange(length) + length - 1
    head = np.arange(heads)[:, None, None]
    groupings = (np.zeros_like(head), head, head * (2 * length - 1) + distance)
    one, of_head, of_distance = (_bias(step, data, np.broadcast_to(which, step.value.shape)) for which in groupings)
    bias, free = of_distance
    judged = np.count_nonzero(data.judged)
    simpler = min(data.distance(step.value + b) + count * np.log(judged) for b, count in ((np.zeros(()), 0), one, of_head))
    if judged < 2 * free or simpler - data.distance(step.value + bias) < free * np.log(judged):
        return None

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        stored = arithmetic.storage.rounding_variance
        return as_array(stored(altered.inner.value) + stored(bias))

    return Fit(Altered(step, lambda inner: inner.value + bias, slack), free)


def _bias(step: Step, data: FitData, which: Ids) -> tuple[Array, int]:
    """Return a bias for each group of elements, at each element, and how many groups have judged elements.

    It is the mean of the group's residual, weighted by 1/a² for the allowed error a of each judged element.
    """

    def sums(terms: Array) -> Array:
        return as_array(np.bincount(which[data.judged], terms[data.judged], int(which.max()) + 1)[which])

    weight = 1.0 / np.square(data.allowed)
    total = sums(weight)
    bias = sums(weight * (data.actual - step.value)) / np.where(total > 0.0, total, 1.0)
    return as_array(bias), int(np.unique(which[data.judged]).size)


FITTED_ATTENTION = (
    Fitted("keys-last-hidden", PROBS, "the last {value} keys are not attended to", "constructed", _last_hidden,
           "a loop over whole blocks of keys that leaves out the rest", unexposed_parents=True,
           equation="p = softmax over the unmasked keys j < S − n", fix="Attend to the keys of the last, incomplete block, too."),
    Fitted("mask-other", PROBS, "the equation holds with another mask than the batch's", "constructed",
           _other_mask, "the mask of the example that was traced, baked into the graph; another batch's mask",
           unexposed_parents=True, fix="Use the attention_mask of each call; export with the mask as an input.",
           estimates="the mask", is_description=True),
    Fitted("mask-window", PROBS, "tokens do not attend to tokens more than {value} positions away", "constructed",
           _window, "the window of ModernBERT's or Longformer's local layers", unexposed_parents=True,
           equation="p = softmax over the unmasked keys j with |i − j| ≤ w", fix="Let every token attend to all unmasked keys."),
    Fitted("mask-by-head", PROBS, "the equation holds with a mask of its own for each head", "constructed",
           _mask_of_heads, "masks of (B · h, S, S) in another order than the scores", unexposed_parents=True,
           fix=_MASKS, estimates="a mask for each head", is_description=True),
    Fitted("mask-by-query", PROBS, "the equation holds with a mask of its own for each query", "constructed",
           _mask_of_queries, "a mask for each pair of tokens, where the batch has one for each token",
           unexposed_parents=True, fix=_MASKS, estimates="a mask for each query", is_description=True),
    Fitted("head-zero", frozenset({"context", "copy", "probs"}), "some heads are zero, the first of them head {value}",
           "constructed", _zero_heads, "a head mask that is left in; heads that are pruned but not removed",
           fix="Use every head that the checkpoint has."),
    Fitted("scores-bias-by-distance", SCORES, "the scores have a bias for each distance of query and key", "constructed",
           _by_distance, "relative positions, such as T5's, or ALiBi's slopes",
           equation="s_ij = q_i · k_j / √d + b_h(i − j)",
           fix="Add position embeddings to the word embeddings only, as the config's position_embedding_type says.",
           estimates="a bias for each distance"),
)  # fmt: skip
