"""Faults in which a function is approximated less accurately than in any known kernel.

Let F be the function inside a step and ε its error. ε is a function of the argument t alone, and it follows from the correct result
y and the candidate's result, `made`:

    GELU        y = x/2 · (1 + F),  F = erf(x/√2) or tanh(…):   ε(x) = 2 (made − y) / x
    GELU        y = F(x):                                        ε(x) = made − y
    tanh        y = F(x):                                        ε(x) = made − y
    softmax     p_j/p_m = F(s_j − m), m the row's largest score: ε(t)/F(t) = (made_j/made_m) / F(t) − 1, exactly 0 at t = 0

ε is fitted as a curve (`faults.fitted.curve`). It is attributed to an approximation under four conditions:

- For errors that are not a function of t, a fit this good is less probable than a false alarm.
- Simpler explanations leave a larger residual: a factor of the result or of the argument, a constant, or a rounding of the result
  or argument to a narrower format.
- The largest |ε| is less than half of the largest difference, on these inputs, between F and any other function in its place. By
  the triangle inequality, the approximation is then nearer to F than to the other function.
- The remaining residual passes as that of a correct step, which the judge decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import expit, fdtri

from conformance.faults.altered import Altered
from conformance.faults.fitted.curve import Curve, curve, effective_samples
from conformance.faults.fitted.fitted_fault import TINY, Fit, FitData, Fitted
from conformance.faults.kinds import ERF_FORM, GELUS, TANH_FORMS
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.functions import SIGMOID_FACTOR
from conformance.oracle import Step
from conformance.oracle.pointwise import gelu, gelu_tanh, silu
from conformance.oracle.softmax import Probabilities

Function = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class _Errors:
    """Errors of the function inside a step, computed from N elements of the step's result.

    Attributes:
        argument: the arguments t, (N,).
        error: the errors that are fitted, ε(t) / `size`, (N,).
        scale: the standard deviation of `error` in a correct candidate, (N,).
        size: the factor that converts `error` into ε, (N,).
        others: the differences between K other functions and the correct one, (K, N).
        simple: the terms of simpler explanations of the error, (N, C).
        made_with: function from a curve to the step's result with that curve as the error.
        equal: the largest number of elements of the result over which an entry of `error` is averaged.
    """

    argument: Array
    error: Array
    scale: Array
    size: Array
    others: Array
    simple: Array
    made_with: Callable[[Curve], Array]
    equal: int = 1

    @property
    def limit(self) -> float:
        """Half of the largest difference between the correct function and the nearest other function."""
        return float(np.abs(self.others).max(1).min()) / 2.0

    def merged(self) -> "_Errors":
        """Return the errors with elements of equal argument replaced by their weighted mean, in ascending order of the argument."""
        t, first, which = np.unique(self.argument, return_index=True, return_inverse=True)
        weight = 1.0 / np.square(self.scale)
        total = np.bincount(which, weight)
        mean = np.bincount(which, weight * self.error) / total
        others, simple = self.others[:, first], self.simple[first]
        scale, equal = 1.0 / np.sqrt(total), int(np.bincount(which).max())
        return _Errors(t, mean, scale, self.size[first], others, simple, self.made_with, equal)


Reading = Callable[[Step, FitData], _Errors | None]


def _approximated(reading: Reading, step: Step, data: FitData) -> Fit | None:
    """Return the step with the fitted error of its function, or None unless the first three conditions of the module hold."""
    if not data.is_finite:
        return None
    found = reading(step, data)
    if found is None:
        return None
    errors = found.merged()
    # The ulp of a result, and hence its rounding error, is proportional to the result to within a factor of 2. The mean of n errors
    # of at most s each is at most √n times its own scale s/√n.
    room = 2.0 * data.largest * errors.equal**0.5
    fitted = curve(errors.argument, errors.error, errors.scale, data.chance, room)
    if fitted is None or _is_simple(errors, fitted, data.chance):
        return None
    value, deviation = (v * errors.size for v in fitted(errors.argument))
    at = int(np.argmax(np.abs(value) - data.threshold * deviation))  # The largest value beyond its own uncertainty.
    if not data.threshold * deviation[at] < abs(value[at]) < errors.limit:
        return None
    actual = errors.made_with(fitted)
    return Fit(Altered(step, lambda _: actual), fitted.free, "error", float(abs(value[at])), float(deviation[at]))


def _is_simple(errors: _Errors, fitted: Curve, chance: float) -> bool:
    """Return whether a linear combination of the simple terms explains the error.

    It does if every residual is within the scale, or if its mean square is not significantly larger than that of the curve, by an F
    test at significance level `chance`.
    """
    target, terms = errors.error / errors.scale, errors.simple / errors.scale[:, None]
    lengths = np.linalg.norm(terms, axis=0)
    terms = terms / np.where(lengths > 0.0, lengths, 1.0)
    left = target - terms @ np.linalg.lstsq(terms, target, rcond=None)[0]
    if np.abs(left).max() <= 1.0:
        return True
    others = target - fitted(errors.argument)[0] / errors.scale
    degrees = effective_samples(left) - terms.shape[1], effective_samples(others) - fitted.free
    if min(degrees) <= 0.0 or not others.any():
        return False
    ratio = (left**2).sum() / degrees[0] / ((others**2).sum() / degrees[1])
    return bool(ratio <= 1.0 / fdtri(*reversed(degrees), chance))


def _pointwise(gain: Function, others: Sequence[Function]) -> Reading:
    """Return the reading of steps y = … + gain(x) · F(x) with one parent x.

    Args:
        gain: the factor of the function F in the result.
        others: other step functions y(x) that may have been used in place of the correct one.
    """

    def reading(step: Step, data: FitData) -> _Errors | None:
        x, right = step.parents[0], step.value
        by = gain(x)
        used = data.judged & (by != 0.0)
        if not used.any():
            return None
        tiny = np.finfo(np.float32).tiny
        slope = step.jacobians()[0].adjoint(np.ones_like(right))

        def of(change: Array) -> Array:
            return as_array(change[used] / by[used])

        def made_with(error: Curve) -> Array:
            value = right.copy()
            value[used] += by[used] * error(x[used])[0]
            return value

        narrow = [FORMATS[name].round for name in ("bfloat16", "float16")]
        rounded = [e for f in narrow for e in (f(right) - right, step.replaced(parents=(f(x),)).value - right)]
        simple = (right, x, np.ones_like(x), slope, x * slope, *rounded)
        return _Errors(
            x[used],
            of(data.actual - right),
            np.abs(of(data.allowed * np.maximum(np.abs(data.actual) / np.maximum(np.abs(right), tiny), 1.0))),
            np.ones(int(used.sum())),
            np.stack([of(f(x) - right) for f in others]),
            np.stack([of(term) for term in simple], -1),
            made_with,
        )

    return reading


def _exponential(step: Step, data: FitData) -> _Errors | None:
    """Return the errors of the exponential in a softmax, from the ratio of each probability to that of the row's largest score.

    Masked keys are not used. An exponential with a least value, which a limit of its argument gives, is that there: the median of
    the candidate's ratios.
    """
    assert isinstance(step, Probabilities)
    scores = np.where(step.keys, step.parents[0], -np.inf)
    largest = scores.argmax(-1, keepdims=True)
    t = scores - np.where(step.keys.any(-1, keepdims=True), np.take_along_axis(scores, largest, -1), 0.0)
    right, rows = step.value, data.judged.any(-1, keepdims=True)
    tops = [np.take_along_axis(a, largest, -1) for a in (right, data.actual, data.allowed)]
    right_top, made_top, allowed_top = tops
    used = data.judged & (t < 0.0) & (right > 0.0) & (made_top > 0.0)
    if not used.any():
        return None

    over_top = data.actual / np.where(made_top > 0.0, made_top, 1.0)

    def over(a: Array, b: Array) -> Array:
        return as_array(a[used] / np.broadcast_to(b, a.shape)[used])

    masked = np.broadcast_to(rows & ~step.keys & (made_top > 0.0), right.shape)
    least = float(np.median(over_top[masked])) if masked.any() else 0.0

    def made_with(error: Curve) -> Array:
        inside = rows & step.keys & (t < 0.0)
        weights = np.where(step.keys, np.exp(t), least)
        weights[inside] *= 1.0 + error(t[inside])[0]
        return np.where(rows, weights / np.maximum(weights.sum(-1, keepdims=True), TINY), right)

    exponent = t[used]
    size = np.exp(exponent)
    others = [f(exponent) - size for f in (np.exp2, lambda s: np.exp(s / 2.0))]
    scale = np.hypot(over(data.allowed, right), over(np.broadcast_to(allowed_top, right.shape), right_top))
    return _Errors(exponent, over(data.actual, made_top) / size - 1.0, scale, size, np.stack(others), exponent[:, None], made_with)


def _identity(x: Array) -> Array:
    return x


def _quick(x: Array) -> Array:
    return silu(x, SIGMOID_FACTOR)


def _half(x: Array) -> Array:
    return x / 2.0


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


_NO_GELU: tuple[Function, ...] = (silu, _relu, _identity, np.tanh)
_NO_TANH: tuple[Function, ...] = (_identity, _relu, expit)


def _fault(name: str, kinds: frozenset[str], sentence: str, reading: Reading) -> Fitted:
    cause = "a fast kernel's polynomial or table in place of the library's function"
    fix = "Use the library's function, or an approximation that is accurate to about one rounding."
    return Fitted(
        name, kinds, sentence, "constructed", partial(_approximated, reading), cause,
        unexposed_parents=True, is_largest_error=True, fix=fix,
    )  # fmt: skip


_TANH_IS_OFF = "tanh is an approximation: it is off by up to {value} on these inputs"
# For GELU, erf or tanh is tried first; its error is compared with the other forms of GELU, too. Then GELU as a whole is tried,
# compared with other functions only: its other forms approximate it (Hendrycks and Gimpel 2016, section 2) and are separate faults.
APPROXIMATED = (
    _fault("erf-approximated", ERF_FORM, "GELU is an approximation: erf is off by up to {value} on these inputs",
           _pointwise(_half, (gelu_tanh, _quick, *_NO_GELU))),
    _fault("tanh-approximated", TANH_FORMS, _TANH_IS_OFF, _pointwise(_half, (gelu, _quick, *_NO_GELU))),
    _fault("gelu-approximated", GELUS, "GELU is an approximation: it is off by up to {value} on these inputs",
           _pointwise(np.ones_like, _NO_GELU)),
    _fault("tanh-approximated", frozenset({"tanh"}), _TANH_IS_OFF, _pointwise(np.ones_like, _NO_TANH)),
    _fault("exp-approximated", frozenset({"probs"}),
           "exp in the softmax is an approximation: it is off by up to {value} on these inputs, relative to exp(0) = 1",
           _exponential),
)  # fmt: skip
