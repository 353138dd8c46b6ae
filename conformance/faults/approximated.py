"""Functions that are approximated less well than any known kernel does: the error is a function of the function's argument alone.

With F the function inside a step and ε its error, a function of the argument t alone,

    GELU        y = x/2 · (1 + F),  F = erf(x/√2) or tanh(…):   ε(x) = 2 (made − y) / x
    GELU        y = F(x):                                        ε(x) = made − y
    tanh        y = F(x):                                        ε(x) = made − y
    softmax     p_j/p_m = F(s_j − m), m the row's largest score: ε(t)/F(t) = (made_j/made_m) / F(t) − 1, exactly 0 at t = 0

ε is fitted as a curve (`faults.curve`). It is an error of an approximation where four things hold: so good a fit to what is no
function of t is less likely than a false alarm; a factor of the result or of the argument, a constant, or their rounding to a
narrower format leave more; its largest |ε| is less than half of what any other function in F's place differs by on these inputs
(what is off by less than half the distance to the nearest is nearer to F than to that one, by the triangle inequality); and, which
is for the judge to say, what remains passes as a correct step's error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import expit, fdtri

from conformance.faults.altered import Altered
from conformance.faults.curve import Curve, carrying, curve
from conformance.faults.fit import Fit, FitData, Fitted
from conformance.numerics.formats import FORMATS, Array
from conformance.oracle import Step
from conformance.oracle.pointwise import gelu, gelu_tanh
from conformance.oracle.softmax import Probabilities

Function = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class _Errors:
    """What a result says of the error of the function inside; N elements.

    Attributes:
        argument: (N,) t.
        error: (N,) what is fitted: ε(t) over `size`.
        scale: (N,) what each may be off by in a correct candidate.
        size: (N,) that takes it to ε.
        others: (K, N) what other functions differ by from the right one.
        equal: how many elements of the result at most each of these is the mean of.
        simple: (N, C) what else the error may be a sum of, less simply a function.
        made_with: the step's result with a curve for the error.
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
        """Half of what the nearest other function differs by."""
        return float(np.abs(self.others).max(1).min()) / 2.0

    def merged(self) -> "_Errors":
        """Elements of the same argument as one, their mean; in ascending order."""
        t, first, which = np.unique(self.argument, return_index=True, return_inverse=True)
        weight = self.scale**-2.0
        total = np.bincount(which, weight)
        mean = np.bincount(which, weight * self.error) / total
        others, simple = self.others[:, first], self.simple[first]
        scale, equal = 1.0 / np.sqrt(total), int(np.bincount(which).max())
        return _Errors(t, mean, scale, self.size[first], others, simple, self.made_with, equal)


Reading = Callable[[Step, FitData], _Errors | None]


def _approximated(reading: Reading, step: Step, seen: FitData) -> Fit | None:
    """The step with the error of its function fitted, where the four conditions above hold."""
    if not np.isfinite(seen.actual[seen.judged]).all():
        return None
    found = reading(step, seen)
    if found is None:
        return None
    errors = found.merged()
    # The ulp of a result, and so its rounding, is within a factor of 2 of being in proportion to it; the mean of n errors within
    # s is within √n of its own scale s/√n.
    room = 2.0 * seen.largest * errors.equal**0.5
    fitted = curve(errors.argument, errors.error, errors.scale, seen.chance, room)
    if fitted is None or _is_simple(errors, fitted, seen.chance):
        return None
    value, deviation = (v * errors.size for v in fitted(errors.argument))
    at = int(np.argmax(np.abs(value) - seen.threshold * deviation))  # the largest that is certain
    if not seen.threshold * deviation[at] < abs(value[at]) < errors.limit:
        return None
    actual = errors.made_with(fitted)
    return Fit(Altered(step, lambda _: actual), fitted.free, "error", float(abs(value[at])), float(deviation[at]))


def _is_simple(errors: _Errors, fitted: Curve, chance: float) -> bool:
    """Whether a sum of the simple terms leaves nothing beyond what is allowed, or, but by chance, no more than the curve does.

    By chance: F of the two mean squares.
    """
    target, terms = errors.error / errors.scale, errors.simple / errors.scale[:, None]
    lengths = np.linalg.norm(terms, axis=0)
    terms = terms / np.where(lengths > 0.0, lengths, 1.0)
    left = target - terms @ np.linalg.lstsq(terms, target, rcond=None)[0]
    if np.abs(left).max() <= 1.0:
        return True
    others = target - fitted(errors.argument)[0] / errors.scale
    degrees = carrying(left) - terms.shape[1], carrying(others) - fitted.free
    if min(degrees) <= 0.0 or not others.any():
        return False
    ratio = (left**2).sum() / degrees[0] / ((others**2).sum() / degrees[1])
    return bool(ratio <= 1.0 / fdtri(*reversed(degrees), chance))


def _pointwise(gain: Function, others: Sequence[Function]) -> Reading:
    """Of y = … + gain(x) · F, for y of one parent x."""

    def reading(step: Step, seen: FitData) -> _Errors | None:
        x, right = step.parents[0], step.value
        by = gain(x)
        used = seen.judged & (by != 0.0)
        if not used.any():
            return None
        tiny = np.finfo(np.float32).tiny
        slope = step.jacobians()[0].adjoint(np.ones_like(right))

        def of(change: Array) -> Array:
            return np.asarray(change[used] / by[used])

        def made_with(error: Curve) -> Array:
            value = right.copy()
            value[used] += by[used] * error(x[used])[0]
            return value

        narrow = [FORMATS[name].round for name in ("bfloat16", "float16")]
        rounded = [e for f in narrow for e in (f(right) - right, step.again(parents=(f(x),)).value - right)]
        simple = (right, x, np.ones_like(x), slope, x * slope, *rounded)
        return _Errors(
            x[used],
            of(seen.actual - right),
            np.abs(of(seen.allowed * np.maximum(np.abs(seen.actual) / np.maximum(np.abs(right), tiny), 1.0))),
            np.ones(int(used.sum())),
            np.stack([of(f(x) - right) for f in others]),
            np.stack([of(term) for term in simple], -1),
            made_with,
        )

    return reading


def _exponential(step: Step, seen: FitData) -> _Errors | None:
    """Of the exponential in a softmax: each probability over that of its row's largest score."""
    assert isinstance(step, Probabilities)
    scores = np.where(step.keys, step.parents[0], -np.inf)
    largest = scores.argmax(-1, keepdims=True)
    t = scores - np.where(step.keys.any(-1, keepdims=True), np.take_along_axis(scores, largest, -1), 0.0)
    right, rows = step.value, seen.judged.any(-1, keepdims=True)
    tops = [np.take_along_axis(a, largest, -1) for a in (right, seen.actual, seen.allowed)]
    right_top, made_top, allowed_top = tops
    used = seen.judged & (t < 0.0) & (right > 0.0) & (made_top > 0.0)
    if not used.any():
        return None

    def over(a: Array, b: Array) -> Array:
        return np.asarray(a[used] / np.broadcast_to(b, a.shape)[used])

    def made_with(error: Curve) -> Array:
        inside = rows & step.keys & (t < 0.0)
        weights = np.exp(t)
        weights[inside] *= 1.0 + error(t[inside])[0]
        return np.where(rows, weights / np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny), right)

    exponent = t[used]
    size = np.exp(exponent)
    others = [f(exponent) - size for f in (np.exp2, lambda s: np.exp(s / 2.0))]
    scale = np.hypot(over(seen.allowed, right), over(np.broadcast_to(allowed_top, right.shape), right_top))
    return _Errors(exponent, over(seen.actual, made_top) / size - 1.0, scale, size, np.stack(others), exponent[:, None], made_with)


def _identity(x: Array) -> Array:
    return x


def _quick(x: Array) -> Array:
    return np.asarray(x * expit(1.702 * x))


def _half(x: Array) -> Array:
    return x / 2.0


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


_NO_GELU: tuple[Function, ...] = (lambda x: x * expit(x), _relu, _identity, np.tanh)
_NO_TANH: tuple[Function, ...] = (_identity, _relu, expit)
ERF, TANH = frozenset({"gelu"}), frozenset({"gelu_new", "gelu_pytorch_tanh"})


def _fault(name: str, kinds: frozenset[str], sentence: str, reading: Reading) -> Fitted:
    cause = "a fast kernel's polynomial or table in place of the library's function"
    fix = "Use the library's function, or an approximation whose error is that of a rounding."
    return Fitted(
        name, kinds, sentence, "constructed", partial(_approximated, reading), cause, hidden_parents=True, largest=True, fix=fix
    )


_TANH_IS_OFF = "tanh is an approximation: it is off by up to {value} on these inputs"
# The first that holds: erf, or tanh, nearer to the right one than what the other forms have for it; else GELU as a whole, nearer to
# the right one than any but these forms, which approximate it themselves (Hendrycks and Gimpel 2016, section 2) and have names.
APPROXIMATED = (
    _fault("erf-approximated", ERF, "GELU is an approximation: erf is off by up to {value} on these inputs",
           _pointwise(_half, (gelu_tanh, _quick, *_NO_GELU))),
    _fault("tanh-approximated", TANH, _TANH_IS_OFF, _pointwise(_half, (gelu, _quick, *_NO_GELU))),
    _fault("gelu-approximated", ERF | TANH, "GELU is an approximation: it is off by up to {value} on these inputs",
           _pointwise(np.ones_like, _NO_GELU)),
    _fault("tanh-approximated", frozenset({"tanh"}), _TANH_IS_OFF, _pointwise(np.ones_like, _NO_TANH)),
    _fault("exp-approximated", frozenset({"probs"}),
           "exp of the softmax is an approximation: it is off by up to {value} on these inputs, next to exp(0) = 1", _exponential),
)  # fmt: skip
