"""Fitted faults of asymmetric quantization: the zero point z of x ≈ s (k − z), with integers k from 0 to 255, is not subtracted.

The weights, or the inputs, are then too large by the constant s z:

    weights    y = Σ_i x_i (w_oi + c) + b_o
    inputs     y = Σ_i (x_i + c) w_oi + b_o

Each is tried with the operand rounded to the 256 levels and with the operand as it is. In the first case s, z and hence c = s z
follow from the operand's range; in the second c is fitted by least squares.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from conformance.faults.altered import Altered, with_slack
from conformance.faults.changes import with_stored_weight
from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, nearest_fit
from conformance.faults.quantized import is_near_tie, quotients, symmetric
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_LEVELS = 255.0  # the largest of the integers of an unsigned byte
_FIX = "Subtract the zero point from the integers before they are multiplied by the scale: s (k − z)."


def _without_zero_point(x: Array, axis: int | None, *, with_zero: bool, whole: bool = True) -> tuple[Array, Array, Array]:
    """Return s k of x ≈ s (k − z), the variance of those next to a tie, and s z, in the layout of x or of its first axis.

    Args:
        x: the operand.
        axis: None for a scale of the whole tensor, 1 for one of each row.
        with_zero: whether the range is extended to 0.
        whole: whether z is an integer, or the least element itself has the level 0.
    """
    w, start = x.astype(np.float32), np.float32(0.0)
    low, high = w.min(axis, keepdims=axis is not None), w.max(axis, keepdims=axis is not None)
    if with_zero:
        low, high = np.minimum(low, start), np.maximum(high, start)
    step = as_array((high - low) / np.float32(_LEVELS))
    zero = np.rint(quotients(-low, step)) if whole else np.zeros_like(low)
    quotient = quotients(w, step) if whole else quotients(w - low, step)
    levels = np.clip(np.rint(quotient) + zero, 0.0, _LEVELS)
    moved = step * zero if whole else -low
    near = is_near_tie(quotient)
    return as_array(levels * step, np.float64), as_array(near * step**2, np.float64), as_array(moved, np.float64)


def _of_weights(step: Step, data: FitData) -> Fit | None:
    """Return the nearest layer whose weights are too large by a constant of the tensor, or by one of each output feature."""
    assert isinstance(step, Linear)
    weight = step.site.parameters["weight"]
    if not _is_informative(data):
        return None

    def tried() -> Iterator[tuple[float, Step]]:
        for axis, with_zero, whole in product((None, 1), (False, True), (True, False)):
            larger, _, moved = _without_zero_point(weight, axis, with_zero=with_zero, whole=whole)
            if np.abs(moved).max() > 0.0:
                yield float(moved.flat[np.abs(moved).argmax()]), with_stored_weight(step, larger)
        offset = _offset(step, data, np.broadcast_to(step.inputs.sum(-1, keepdims=True), step.value.shape))
        yield offset, with_stored_weight(step, weight + offset)

    return nearest_fit(step, data, list(tried()), "largest offset")


def _of_inputs(step: Step, data: FitData) -> Fit | None:
    """Return the nearest layer whose inputs are too large by a constant.

    The weight has 255 levels or is as it is; the latter alone is tried with a fitted constant, which could hide another rounding.
    """
    assert isinstance(step, Linear)
    x, weight = step.parents[0], step.site.parameters["weight"]
    if not _is_informative(data) or x.shape != step.inputs.shape:
        return None
    layers = [step, *(with_parameters(step, weight=symmetric(weight, axis)) for axis in (None, 1))]
    made = [_without_zero_point(x, None, with_zero=with_zero) for with_zero in (False, True)]
    offset = _offset(step, data, np.broadcast_to(weight.sum(1), step.value.shape))
    tried = [(float(moved), _with_input(layer, larger, ties)) for layer in layers for larger, ties, moved in made if moved]
    tried.append((offset, _with_input(step, x + offset, np.zeros_like(x))))
    return nearest_fit(step, data, tried, "offset")


def _with_input(step: Step, x: Array, ties: Array) -> Step:
    """Return the layer with an input that may be rounded to storage, and whose elements next to a tie have a variance."""
    squares = step.site.parameters["weight"].T ** 2

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        return as_array((ties + arithmetic.storage.rounding_variance(x)) @ squares)

    return with_slack(step.replaced(parents=(x,)), slack)


def _offset(step: Step, data: FitData, direction: Array) -> float:
    """Return the c that minimizes Σ (residual − c · direction)² over the judged elements."""
    kept = np.where(data.judged, direction, 0.0)
    total = float((kept**2).sum())
    return float((np.where(data.judged, data.actual - step.value, 0.0) * kept).sum()) / total if total else 0.0


def _is_informative(data: FitData) -> bool:
    """Return whether the judged elements are finite and enough rows for a number to be refuted by another row."""
    return data.is_finite and int(data.judged.any(-1).sum()) >= LEAST_ROWS


ZERO_POINTS = (
    Fitted("zero-point-missing", LINEARS, "an offset, such as the zero point of the weights, is not subtracted", "constructed",
           _of_weights, "weights of asymmetric quantisation, dequantised as if they were symmetric",
           equation="y = Σ_i x_i s k_i + b in place of Σ_i x_i s (k_i − z) + b", fix=_FIX, estimates="the offset of the weights"),
    Fitted("zero-point-missing-inputs", frozenset({"linear"}),
           "the inputs are shifted by the constant {value}, such as a zero point that is not subtracted", "constructed",
           _of_inputs, "inputs of asymmetric quantisation, dequantised as if they were symmetric",
           equation="y = Σ_i s k_i w_i + b in place of Σ_i s (k_i − z) w_i + b", fix=_FIX),
)  # fmt: skip
"""Tried before another bias, since inputs that are shifted by a constant change the result as a bias does."""
