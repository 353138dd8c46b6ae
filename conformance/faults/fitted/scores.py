"""Fitted faults of attention scores: a soft cap, cosines of query and key, and heads that share keys or values."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.attention import CONTEXT, SCORES
from conformance.faults.changes import Altered, with_slack
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted, nearest_fit
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.linear import Linear

# Starting values, as multiples of the largest score, on which the estimate does not depend; beyond them tanh(s / c) c is nearly s.
CAPS = 2.0 ** np.arange(0.0, 10.0, 0.25)
_LEAST_NORM = 1e-12  # The eps of torch.nn.functional.normalize.
ROUNDS = 20  # A limit of the time only: a fit that has not converged leaves a residual that the judge does not accept.


def _tanh(s: Array, cap: float) -> Array:
    return as_array(cap * np.tanh(s / cap))


def _capped(step: Step, data: FitData) -> Fit | None:
    """Return the scores c · tanh(s / c), with the cap c by least squares on a logarithmic scale."""
    largest = float(np.abs(data.actual).max(initial=0.0, where=data.judged))
    if largest == 0.0:
        return None
    s, weight = step.value, data.judged / data.allowed
    cap, deviation = min((float(largest * c) for c in CAPS), key=lambda c: data.distance(_tanh(s, c))), np.inf
    for _ in range(ROUNDS):
        x = s / cap
        slope = weight * cap * (np.tanh(x) - x / np.cosh(np.clip(x, -300.0, 300.0)) ** 2)  # with respect to log c
        energy = float(np.vdot(slope, slope))
        if energy == 0.0:
            return None
        change = float(np.vdot(slope, weight * (data.actual - _tanh(s, cap)))) / energy
        deviation = cap * energy**-0.5
        cap *= float(np.exp(np.clip(change, -0.5, 0.5)))
        if cap * abs(change) <= deviation / 10.0:
            break

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        inner = arithmetic.storage.rounding_variance
        return as_array(inner(altered.inner.value) + 2.0 * inner(altered.value))

    return Fit(Altered(step, lambda inner: _tanh(inner.value, cap), slack), 1, "cap", cap, float(deviation))


def _cosines(step: Step, data: FitData) -> Fit | None:
    """Return the scores c · cos(q, k), with the factor c by least squares."""
    width = step.site.architecture.head_size

    def normalised(x: Array) -> Array:
        parts = split_heads(x, width)
        return merge_heads(parts / np.maximum(np.linalg.norm(parts, axis=-1, keepdims=True), _LEAST_NORM))

    query, key = (normalised(x) for x in step.parents)
    unit = step.replaced(parents=(query, key))
    weight = data.judged / data.allowed
    base = weight * unit.value
    energy = float(np.vdot(base, base))
    if energy == 0.0:
        return None
    by = float(np.vdot(base, weight * data.actual)) / energy

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        stored = (4.0 * arithmetic.storage.rounding_variance(x) for x in altered.inner.parents)
        own = sum(j.variance(v) for j, v in zip(altered.inner.jacobians(), stored, strict=True))
        return as_array(own + arithmetic.storage.rounding_variance(altered.value))

    faulty = with_slack(step.replaced(parents=(by * query, key)), slack)
    root = float(width**0.5)
    return Fit(faulty, 1, "factor", by / root, energy**-0.5 / root)


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
    width = step.site.architecture.head_size
    parts = split_heads(last, width)
    tried = [(size, step.replaced(parents=(*others, merge_heads(parts[:, which])))) for size, which in _groups(parts.shape[1])]
    return nearest_fit(step, data, tried, "heads")


def _pooled(step: Step, data: FitData) -> Fit | None:
    """Return keys, or values, of which each group of heads has the mean, for the group size that leaves least of the residual.

    The mean may be taken of rounded results, or of the parameters, and then rounded.
    """
    width, x = step.site.architecture.head_size, step.value
    heads = x.shape[-1] // width
    if x.ndim != 3 or heads * width != x.shape[-1]:
        return None

    def of(size: int) -> Step:
        def mean(y: Array) -> Array:
            groups = y.reshape(*y.shape[:-1], heads // size, size, width)
            return np.broadcast_to(groups.mean(-2, keepdims=True), groups.shape).reshape(y.shape)

        def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
            assert isinstance(altered.inner, Linear)
            rounding, weight = arithmetic.storage.rounding_variance, altered.inner.site.parameters["weight"]
            return as_array(mean(rounding(altered.inner.value)) + altered.inner.inputs**2 @ mean(rounding(weight).T))

        return Altered(step, lambda inner: mean(inner.value), slack)

    return nearest_fit(step, data, [(n, of(n)) for n in range(2, heads + 1) if heads % n == 0], "heads")


FITTED_SCORES = (
    Fitted("heads-averaged", frozenset({"linear"}), "keys, or values, are the means over groups of {value} heads", "constructed",
           _pooled, "a conversion to grouped-query attention without further training (Ainslie et al. 2023, GQA, section 2.1)",
           equation="k of each head of a group = mean of k over the group", only=(".key", ".value"),
           fix="Give each head its own keys and values: num_key_value_heads = num_attention_heads."),
    Fitted("heads-share-keys", SCORES | CONTEXT, "the heads share keys, or values, in groups of {value}", "constructed", _shared,
           "grouped-query attention: num_key_value_heads less than num_attention_heads",
           equation="head j reads the keys of one head of its group",
           fix="Give each head its own keys and values: num_key_value_heads = num_attention_heads."),
    Fitted("scores-capped", SCORES, "the scores s are capped smoothly: {value} · tanh(s / {value})", "constructed", _capped,
           "attn_logit_softcapping of Gemma 2 in shared attention code", equation="s = c tanh(q kᵀ / (c √d))",
           fix="Leave the scores as they are: no soft cap.", of_one_number=True),
    Fitted("scores-cosine", SCORES, "the scores are cosines of query and key, multiplied by {value}", "constructed", _cosines,
           "the cosine attention of Swin V2, or a QK norm", equation="s = c (q / |q|) (k / |k|)ᵀ",
           fix="Multiply query and key as they are, and divide the product by √d.", of_one_number=True),
)  # fmt: skip
