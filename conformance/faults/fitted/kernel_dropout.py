"""The fitted fault of dropout that is active in a fused kernel, read off the context.

With the probabilities p_j and the values v_j of a head's n keys, the context of a query is Σ_j m_j p_j v_j / (1 − p) with m_j 0 or
1. The m_j are the likeliest ones: with r, the residual in units of the allowed error, those of the least Σ r² + 2 k ln((1 − p)/p)
for k dropped keys. Of the 2^(n/2) sums over each half of the keys, all pairs are compared by a product of two matrices. The time
limits this to few keys; the goldens have such rows.
"""

import math

import numpy as np

from conformance.faults.attention import CONTEXT
from conformance.faults.fault import MOST_OPERATIONS
from conformance.faults.fitted.dropout import active, fit_of_share
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array, Mask
from conformance.oracle import Step
from conformance.oracle.bilinear import split_heads

MOST_KEYS = 16  # A limit of the time only: 2^16 sums are compared for each query and head.


def _subsets(count: int) -> Array:
    """Return all choices of `count` elements, as zeros and ones, (2^count, count)."""
    return as_array((np.arange(2**count)[:, None] >> np.arange(count)) & 1, np.float64)


def _kept(terms: Array, found: Array, cost: float) -> Mask:
    """Return which of n terms, (n, d), have the sum that is nearest to `found`, (d,), if each that is left out costs `cost`."""
    half = len(terms) // 2
    first, second = _subsets(half), _subsets(len(terms) - half)
    left, right = found - first @ terms[:half], second @ terms[half:]  # (2^h, d) each
    own, other = ((part**2).sum(1) - cost * chosen.sum(1) for part, chosen in ((left, first), (right, second)))
    distance = own[:, None] + other - 2.0 * left @ right.T
    i, j = np.unravel_index(int(distance.argmin()), distance.shape)
    return np.concatenate([first[i], second[j]]) > 0.0


def _dropped_in_kernel(step: Step, data: FitData) -> Fit | None:
    """Return the context with the probabilities that are dropped, and the others divided by 1 − p, for the config's p.

    None is returned unless the share of dropped ones agrees with p, among those whose dropping changes the result significantly.
    """
    rate, (probs, value) = step.site.architecture.attention_probs_dropout_prob, step.parents
    size = step.site.architecture.head_size
    some = probs > 0.0
    queries = as_array(data.judged.any(-1))  # (B, Q)
    most = int(some.sum(-1).max(initial=0))
    work = int(queries.sum()) * probs.shape[1] * size * 2**most
    if not 0.0 < rate < 1.0 or most > MOST_KEYS or work > MOST_OPERATIONS or not data.is_finite:
        return None
    values, found, allowed = (split_heads(a, size) for a in (value, data.actual, np.broadcast_to(data.allowed, data.actual.shape)))
    cost = 2.0 * math.log((1.0 - rate) / rate)
    kept = np.ones(probs.shape, bool)
    distinct = np.zeros(probs.shape, bool)
    for row, query in np.argwhere(queries):
        for head in range(probs.shape[1]):
            keys = np.flatnonzero(some[row, head, query])
            terms = probs[row, head, query, keys, None] * values[row, head, keys] / (1.0 - rate)
            unit = allowed[row, head, query]
            kept[row, head, query, keys] = _kept(terms / unit, found[row, head, query] / unit, cost)
            distinct[row, head, query, keys] = (np.abs(terms) > 2.0 * data.threshold * unit).any(-1)
    count = int(distinct.sum())
    share = float((distinct & ~kept).sum()) / max(count, 1)
    if not count or not share > 0.0 or abs(share - rate) > data.threshold * np.sqrt(rate * (1.0 - rate) / count):
        return None
    return fit_of_share(step.replaced(parents=(np.where(kept, probs, 0.0) / (1.0 - rate), value)), share, count)


KERNEL_DROPOUT: tuple[Fitted, ...] = (active(CONTEXT, _dropped_in_kernel),)
"""Tried last of all names, since its fit takes seconds."""
