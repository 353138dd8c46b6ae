"""Fitted faults of functions with one number: of forms of GELU, a cap, cosines, limits, masked scores; and the sums of softmax."""

from collections.abc import Callable

import numpy as np

from conformance.faults.attention import PROBS, SCORES, keys_of, softmax
from conformance.faults.changes import Altered, with_slack, with_slack_of_parent
from conformance.faults.fault import ERF_FORM, GELUS, LINEARS
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, one_number
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.numerics.functions import SIGMOID_FACTOR, TANH_CUBIC, TANH_OUTER
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads
from conformance.oracle.linear import Linear
from conformance.oracle.pointwise import Gelu, GeluTanh, gelu_tanh, silu

Form = Callable[[Array, float], Array]

_LEAST_NORM = 1e-12  # The eps of torch.nn.functional.normalize.
_HIDDEN_ACT = "Choose the function by the config's hidden_act: gelu is the erf form, gelu_new and gelu_pytorch_tanh the tanh form."


def _constant(usual: float, form: Form, equation: type[Step]) -> Callable[[Step, FitData], Fit | None]:
    """Return the fit of a constant of a function that has another value than the usual one, with the roundings of an equation."""

    def fit(step: Step, data: FitData) -> Fit | None:
        found = one_number(data, step.parents[0], form, [usual])
        if found is None or abs(found[0] - usual) <= data.threshold * found[1]:
            return None
        return Fit(Altered(step.recast(equation), lambda inner: form(inner.parents[0], found[0])), 1, "factor", *found)

    return fit


def _capped(step: Step, data: FitData) -> Fit | None:
    """Return the scores c · tanh(s / c); from about 100 times the largest score on, a cap c changes nothing."""

    def form(s: Array, cap: float) -> Array:
        return as_array(cap * np.tanh(s / cap))

    largest = float(np.abs(data.actual).max(initial=0.0, where=data.judged))
    if not largest > 0.0:
        return None
    found = one_number(data, step.value, form, [largest * 2.0 ** (n / 2.0) for n in range(14)])
    if found is None:
        return None

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        inner = arithmetic.storage.rounding_variance
        return as_array(inner(altered.inner.value) + 2.0 * inner(altered.value))

    return Fit(Altered(step, lambda inner: form(inner.value, found[0]), slack), 1, "cap", *found)


def _cosines(step: Step, data: FitData) -> Fit | None:
    """Return the scores c · cos(q, k)."""
    width = step.site.architecture.head_size

    def normalised(x: Array) -> Array:
        parts = split_heads(x, width)
        return merge_heads(parts / np.maximum(np.linalg.norm(parts, axis=-1, keepdims=True), _LEAST_NORM))

    query, key = (normalised(x) for x in step.parents)
    cosines = step.replaced(parents=(query * width**0.5, key)).value
    found = one_number(data, cosines, lambda x, c: x * c, [float(width**-0.5)])
    if found is None:
        return None
    faulty = step.replaced(parents=(found[0] * width**0.5 * query, key))

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        stored = (4.0 * arithmetic.storage.rounding_variance(x) for x in altered.inner.parents)
        own = sum(j.variance(v) for j, v in zip(altered.inner.jacobians(), stored, strict=True))
        return as_array(own + arithmetic.storage.rounding_variance(altered.value))

    return Fit(with_slack(faulty, slack), 1, "factor", *found)


def _clipped(step: Step, data: FitData) -> Fit | None:
    """Return the layer with inputs limited to ±c, for a limit below the largest input."""
    assert isinstance(step, Linear)
    x, weight, bias = step.parents[0], step.site.parameters["weight"], step.bias
    if x.shape != step.inputs.shape or int(data.judged.any(-1).sum()) < LEAST_ROWS:
        return None
    sizes = np.sort(np.abs(x), axis=None)[::-1]
    ranks = np.unique(np.geomspace(1, sizes.size, 32).astype(int)) - 1  # How many inputs are beyond the limit.
    starts = [float(size) for size in sizes[ranks] if size > 0.0]
    found = one_number(data, x, lambda x, c: np.clip(x, -c, c) @ weight.T + bias, starts or [1.0])
    if found is None or found[0] >= sizes[0]:
        return None
    limited = step.replaced(parents=(np.clip(x, -found[0], found[0]),))
    stored = np.abs(x) > found[0]  # The limit may be rounded to storage.
    return Fit(
        with_slack_of_parent(limited, lambda _, a: a.storage.rounding_variance(np.full_like(x, found[0])) * stored),
        1,
        "limit",
        *found,
    )


def _filled(step: Step, data: FitData) -> Fit | None:
    """Return the softmax over all keys with the constant −c in place of masked scores; None if masked keys have no probability."""
    keys = np.broadcast_to(keys_of(step), step.value.shape)
    if (keys | ~data.judged.any(-1, keepdims=True)).all() or not (data.actual[~keys] > 0.0).any():
        return None

    def form(s: Array, c: float) -> Array:  # Masked scores are NaN.
        return softmax(np.where(np.isnan(s), -c, s), np.ones(s.shape, np.bool_))

    found = one_number(data, np.where(keys, step.parents[0], np.nan), form, [2.0**n for n in range(-2, 7)])
    if found is None:
        return None
    faulty = Altered(step, lambda inner: form(np.where(keys, inner.parents[0], np.nan), found[0]))
    return Fit(faulty, 1, "score", -found[0], found[1])


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


FITTED_NUMBERS = (
    Fitted("scores-capped", SCORES, "the scores s are capped smoothly: {value} · tanh(s / {value})", "constructed", _capped,
           "attn_logit_softcapping of Gemma 2 in shared attention code", equation="s = c tanh(q kᵀ / (c √d))",
           fix="Leave the scores as they are: no soft cap.", of_one_number=True),
    Fitted("scores-cosine", SCORES, "the scores are cosines of query and key, multiplied by {value}", "constructed", _cosines,
           "the cosine attention of Swin V2, or a QK norm", equation="s = c (q / |q|) (k / |k|)ᵀ",
           fix="Multiply query and key as they are, and divide the product by √d.", of_one_number=True),
    Fitted("mask-filled", PROBS, "masked scores are replaced by {value}, which is not low enough", "constructed", _filled,
           "a mask that is limited to the range of quantised scores, or a number that is too small in magnitude",
           equation="p_j ∝ exp(c) at masked keys", fix="Replace masked scores by the lowest number of the format, or by −∞.",
           of_one_number=True),
    Fitted("inputs-clipped", LINEARS, "its inputs are limited to ±{value}", "constructed", _clipped,
           "a static range of quantised activations that is calibrated on too small values",
           equation="y = min(max(x, −c), c) Wᵀ + b",
           fix="Calibrate the range on inputs like these, or compute it in each call.", of_one_number=True),
)  # fmt: skip

FITTED_FUNCTIONS = (
    Fitted("gelu-tanh-cubic", ERF_FORM, "GELU takes its tanh form, with the factor {value} of x³, not 0.044715", "constructed",
           _constant(TANH_CUBIC, lambda x, c: gelu_tanh(x, cubic=c), GeluTanh),
           "a typing error in 0.044715; the checkpoint has the erf form",
           equation="y = x/2 · (1 + tanh(√(2/π) (x + c x³)))", fix=_HIDDEN_ACT, of_one_number=True),
    Fitted("gelu-tanh-outer", GELUS, "GELU takes its tanh form, with the factor {value}, not √(2/π) = 0.797885",
           "constructed", _constant(TANH_OUTER, gelu_tanh, GeluTanh),
           "√(2/π) with too few digits",
           equation="y = x/2 · (1 + tanh(k (x + 0.044715 x³)))", fix=_HIDDEN_ACT, of_one_number=True),
    Fitted("gelu-sigmoid-factor", GELUS, "the activation is x · sigmoid({value} x)", "constructed",
           _constant(SIGMOID_FACTOR, silu, Gelu),
           "the quick form of GELU, with another constant than 1.702",
           equation="y = x / (1 + exp(−k x))", fix=_HIDDEN_ACT, of_one_number=True),
    Fitted("softmax-unnormalised", PROBS,
           "the equation holds with another divisor for each row: its sum differs from 1 by up to {value}",
           "constructed", _row_factors, "a fast reciprocal, or a denominator of other terms", is_largest_error=True, per_token=True,
           equation="p_j = c exp(s_j − m) / Σ_k exp(s_k − m), with a c of each row",
           fix="Divide the exponentials by their sum, with an accurate division.", is_description=True),
)  # fmt: skip
