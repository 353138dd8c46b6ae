"""Fitted faults of functions: a form of GELU with another constant, or a softmax whose rows do not sum to 1."""

import math
from collections.abc import Callable

import numpy as np

from conformance.faults.changes import Altered
from conformance.faults.fault import ERF_FORM, GELUS
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.numerics.formats import Array
from conformance.numerics.functions import SIGMOID_FACTOR, TANH_CUBIC, TANH_OUTER
from conformance.oracle import Step
from conformance.oracle.pointwise import Gelu, GeluTanh, gelu_tanh, silu

Form = Callable[[Array, float], Array]

_STEPS = 24  # A limit of the time only: a fit that has not converged leaves a residual that the judge does not accept.
_THINNED = 64  # A limit of the time only: the fit to all elements starts at the result of the fit to one element in so many.
_LAST_STEPS = 3  # on all elements; each squares the error of a right form's constant (Nocedal and Wright 2006, section 10.3)
_EPS = float(np.finfo(np.float64).eps)
_NUDGE = _EPS ** (1 / 3)  # balances truncation and rounding of a central difference
_HIDDEN_ACT = "Choose the function by the config's hidden_act: gelu is the erf form, gelu_new and gelu_pytorch_tanh the tanh form."


def _constant(name: str, start: float, form: Form, equation: type[Step]) -> Callable[[Step, FitData], Fit | None]:
    """Return the fit of one constant of a function, by weighted least squares from the value `start`.

    Args:
        name: name of the constant.
        start: its usual value.
        form: the function of the argument and the constant.
        equation: the step whose rounding errors the function has.
    """

    def fit(step: Step, data: FitData) -> Fit | None:
        if not data.is_finite:
            return None
        x, weight = step.parents[0], np.where(data.judged, 1.0 / data.allowed, 0.0)
        some = np.s_[..., ::_THINNED]
        value, deviation = _converged(form, start, x[some], weight[some], data.actual[some], _STEPS)
        value, deviation = _converged(form, value, x, weight, data.actual, _STEPS if math.isinf(deviation) else _LAST_STEPS)
        if math.isinf(deviation) or abs(value - start) <= data.threshold * deviation:
            return None
        return Fit(Altered(step.recast(equation), lambda inner: form(inner.parents[0], value)), 1, name, float(value), deviation)

    return fit


def _converged(form: Form, start: float, x: Array, weight: Array, actual: Array, steps: int) -> tuple[float, float]:
    """Return the constant and its standard deviation by Gauss-Newton steps from `start`, or `start` and infinity if it has none.

    It has converged when a step changes it by so little that its deviation does not show it.
    """
    value, deviation = start, math.inf
    for _ in range(steps):
        nudge = _NUDGE * max(abs(value), _NUDGE)
        slope = weight * (form(x, value + nudge) - form(x, value - nudge)) / (2.0 * nudge)
        energy = float(np.vdot(slope, slope))
        if not energy > 0.0:
            return start, math.inf
        moved = float(np.vdot(slope, weight * (actual - form(x, value)))) / energy
        value, deviation = value + moved, energy**-0.5
        if not 0.0 < value < 100.0:
            return start, math.inf
        if abs(moved) <= max(_EPS * abs(value), math.sqrt(_EPS) * deviation):
            break
    return value, deviation


def _row_factors(step: Step, data: FitData) -> Fit | None:
    """Return the softmax with each row multiplied by a factor that is fitted to the row; the largest |Σ p − 1| is reported."""
    if not data.is_finite:
        return None
    right, used = step.value, data.judged & (step.value > 0.0)
    counts = used.sum(-1)
    if not (counts > 2).any() or np.median(counts[counts > 0]) <= 2.0:
        return None
    weight = np.where(used, 1.0 / np.square(data.allowed), 0.0)
    energy = (weight * right**2).sum(-1, keepdims=True)
    known = energy > 0.0
    energy = np.where(known, energy, 1.0)
    factor = np.where(known, (weight * right * data.actual).sum(-1, keepdims=True) / energy, 1.0)
    off, noise = np.abs(factor - 1.0), np.where(known, energy**-0.5, 0.0)
    at = int(np.argmax(off - data.threshold * noise))
    if off.flat[at] <= data.threshold * noise.flat[at]:
        return None
    faulty = Altered(step, lambda inner: factor * inner.value)
    return Fit(faulty, int(known.sum()), "error", float(off.flat[at]), float(noise.flat[at]))


FITTED_FUNCTIONS = (
    Fitted("gelu-tanh-cubic", ERF_FORM, "GELU takes its tanh form, with the factor {value} of x³, not 0.044715", "constructed",
           _constant("factor", TANH_CUBIC, lambda x, c: gelu_tanh(x, cubic=c), GeluTanh),
           "a typing error in 0.044715; the checkpoint has the erf form",
           equation="y = x/2 · (1 + tanh(√(2/π) (x + c x³)))", fix=_HIDDEN_ACT, of_one_number=True),
    Fitted("gelu-tanh-outer", GELUS, "GELU takes its tanh form, with the factor {value}, not √(2/π) = 0.797885",
           "constructed", _constant("factor", TANH_OUTER, gelu_tanh, GeluTanh),
           "√(2/π) with too few digits",
           equation="y = x/2 · (1 + tanh(k (x + 0.044715 x³)))", fix=_HIDDEN_ACT, of_one_number=True),
    Fitted("gelu-sigmoid-factor", GELUS, "the activation is x · sigmoid({value} x)", "constructed",
           _constant("factor", SIGMOID_FACTOR, silu, Gelu),
           "the quick form of GELU, with another constant than 1.702",
           equation="y = x / (1 + exp(−k x))", fix=_HIDDEN_ACT, of_one_number=True),
)  # fmt: skip

UNNORMALISED = Fitted(
    "softmax-unnormalised", frozenset({"probs"}),
    "the equation holds with another divisor for each row: its sum differs from 1 by up to {value}",
    "constructed", _row_factors, "a fast reciprocal, or a denominator of other terms", is_largest_error=True, per_token=True,
    equation="p_j = c exp(s_j − m) / Σ_k exp(s_k − m), with a c of each row",
    fix="Divide the exponentials by their sum, with an accurate division.", is_description=True,
)  # fmt: skip
"""The fault of rows that are normalized by a wrong sum, tried after an approximation of exp."""
