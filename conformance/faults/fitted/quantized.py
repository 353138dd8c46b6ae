"""Fitted faults of fewer levels: inputs and weights as integers, with a step computed in each call, and results as multiples.

The inputs are rounded to ±127 times a step, over a tensor or a token, or to 0 … 255 or 127 times a step s and a zero point z over
the range of the tensor, of which the latter may not be subtracted: x ≈ s (k − z), or s k. The weights are rounded to ±127 times a
step over a tensor or an output feature, or are as they are.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from conformance.faults.changes import Altered, with_slack
from conformance.faults.fault import FUNCTIONS, LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted
from conformance.faults.quantized import distance_to_tie, symmetric
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_HELD = 2.0**-10  # A quotient within this distance of a tie may be rounded either way, if its scale is stored in float16.
_EIGHT_BITS = (255, 256, 127, 128)  # levels of eight bits, with and without a sign

Rounded = tuple[
    Array, Array, float, str
]  # What is rounded, the variance of what is next to a tie, the largest step, and how, in words.


def _symmetric(x: Array, axis: int | None, largest: float, how: str) -> Rounded:
    """Return x as integers, at most ±`largest`, times a step over the tensor (`axis` None) or over each slice of an axis."""
    return *symmetric(x, axis, largest), float(np.abs(x).max()) / largest, how


def _asymmetric(x: Array, levels: int, how: str, *, with_zero: bool = True, subtracted: bool = True) -> Rounded:
    """Return x as s (k − z), with k from 0 to `levels` over its range, or s k where the zero point z is not subtracted.

    Args:
        x: the inputs.
        levels: the largest integer.
        how: this form in words.
        with_zero: whether the range is extended to 0.
        subtracted: whether the zero point is subtracted.
    """
    wide, nothing = x.astype(np.float32), np.float32(0.0)
    low, high = wide.min(), wide.max()
    if with_zero:
        low, high = min(low, nothing), max(high, nothing)
    step = np.float32((high - low) / np.float32(levels)) or np.float32(1.0)
    zero, quotient = np.float32(np.rint(-low / step)), wide / step
    integers = np.clip(np.rint(quotient) + zero, 0, levels) - zero * subtracted
    near = distance_to_tie(quotient) < _HELD
    return as_array(integers * step, np.float64), as_array(near * float(step) ** 2, np.float64), float(step), how


def _inputs(x: Array) -> Iterator[Rounded]:
    """Yield the inputs as they are rounded."""
    yield _symmetric(x, None, 127.0, "255 levels")
    yield _symmetric(x, -1, 127.0, "255 levels for each token")
    for levels in (255, 127):
        yield _asymmetric(x, levels, f"{levels + 1} levels with a zero point")
    for with_zero in (True, False):
        yield _asymmetric(x, 255, "256 levels, whose zero point is not subtracted", with_zero=with_zero, subtracted=False)


def _weights(weight: Array) -> Iterator[Rounded]:
    """Yield the weight as it is, and as it is rounded."""
    yield weight, np.zeros(()), 0.0, ""
    for (axis, of), largest in product(((None, ""), (1, " for each output")), (127.0, 127.5)):
        yield _symmetric(weight, axis, largest, f", of the weight {2.0 * largest + 1.0:g} levels{of}")


def _operands(step: Step, data: FitData) -> Fit | None:
    """Return the layer with the nearest form of rounded inputs and weight, of torch's, ONNX Runtime's or another quantisation."""
    assert isinstance(step, Linear)
    x = step.parents[0]
    if not data.is_finite or int(data.judged.any(-1).sum()) < LEAST_ROWS:
        return None
    forms = list(product(_inputs(x), _weights(step.site.parameters["weight"])))
    steps = (with_parameters(step, weight=weight[0]).replaced(parents=(inputs[0],)) for inputs, weight in forms)
    at = int(np.argmin([data.distance(faulty.value) for faulty in steps]))
    (inputs, ties, unit, how), (weight, _, _, of_weight) = forms[at]

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return altered.inner.jacobians()[0].variance(ties + arithmetic.storage.rounding_variance(inputs))

    faulty = with_slack(with_parameters(step, weight=weight).replaced(parents=(inputs,)), slack)
    return (
        Fit(faulty, 1, f"{how}{of_weight}, step of the inputs", unit)
        if data.distance(faulty.value) < data.distance(step.value)
        else None
    )


def _result(step: Step, data: FitData) -> Fit | None:
    """Return the result in multiples of the largest one, or of 1, divided by the number of levels, from the least to the largest.

    Steps are compared by the median distance: the sum of squares consists of the few ties that were rounded the other way. A result
    that lies within its error of a tie may be rounded either way.
    """
    actual = data.actual[data.judged]
    if not data.is_finite or not actual.max(initial=0.0) > 0.0:
        return None
    largest = (1.0, float(actual.max()), float(np.nan_to_num(data.actual).max()))  # The step may be that of padding, too.

    def distance(unit: float) -> float:
        return float(np.median(np.abs(data.actual - np.rint(step.value / unit) * unit)[data.judged]))

    unit = min((whole / n for whole in largest for n in _EIGHT_BITS), key=distance)
    if (np.abs(actual - np.rint(actual / unit) * unit) > data.largest * data.allowed[data.judged]).any():
        return None
    least, most = np.rint(actual.min() / unit) + 0.0, np.rint(actual.max() / unit)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        own, quotient = altered.inner.roundings(arithmetic), altered.inner.value / unit
        error = data.largest * np.sqrt(own.variance()) / unit + as_array(own.bound) / unit
        return np.where(distance_to_tie(quotient) <= error, unit**2, 0.0)

    faulty = Altered(step, lambda inner: np.clip(np.rint(inner.value / unit), least, most) * unit, slack)
    return Fit(faulty, 1, f"integers from {least:g} to {most:g}, step", unit)


FITTED_LEVELS = (
    Fitted("precision-int8-inputs", LINEARS, "the inputs are rounded to eight bits, with a step that is computed in each call",
           _operands, is_largest_error=True, estimates="the levels of the inputs"),
    Fitted("result-levels", FUNCTIONS | {"probs"}, "the result is rounded to multiples of {value}", _result,
           is_largest_error=True, estimates="the levels"),
)  # fmt: skip
