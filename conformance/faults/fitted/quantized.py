"""Fitted faults of dynamic quantization: weights and inputs, or a result, as integers, with a scale computed in each call.

The fitted fault of a linear layer whose inputs are limited to ±c, as by a static range of quantisation that is too small.

The result y(c) = min(max(x, −c), c) Wᵀ + b is linear in c between the magnitudes of the inputs, with the slope

    ∂y_no/∂c = Σ_k sign(x_nk) [|x_nk| > c] w_ok,

so c is found by Gauss–Newton steps from the best of some limits, which clip 1 to N of the N inputs; these numbers form a
geometric series. Its standard deviation is (Σ (∂y/∂c)²/a²)^(−1/2) for results of the error a.

Fitted faults of asymmetric quantization: the zero point z of x ≈ s (k − z), with integers k from 0 to 255, is not subtracted. The
weights, or the inputs, are then too large by the constant s z:

    weights    y = Σ_i x_i (w_oi + c) + b_o
    inputs     y = Σ_i (x_i + c) w_oi + b_o

Each is tried with the operand rounded to the 256 levels and with the operand as it is. In the first case s, z and hence c = s z
follow from the operand's range; in the second c is fitted by least squares.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from conformance.faults.changes import Altered, with_slack, with_stored_weight
from conformance.faults.fault import FUNCTIONS, LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, MOST_ROWS, Fit, FitData, Fitted, nearest_fit
from conformance.faults.hints import hint
from conformance.faults.quantized import distance_to_tie, is_near_tie, quotients, symmetric
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_UNQUANTIZED = hint("precision-*").repair

MOST_PRODUCTS = 2**28  # A limit of the time: pairs are summed one by one.
_NEAR_TIE = 2.0**-10  # A quotient within this distance of a tie may be rounded either way, if its scale is stored in float16.


def _operands(x: Array, levels: int) -> tuple[Array, Array]:
    """Return the inputs as integers 0 … `levels` times a step, and the variance of those next to a tie.

    The step covers the range of all inputs and 0.
    """
    step, zero = _scale(x, levels)
    quotient = x.astype(np.float32) / step
    made = as_array((np.clip(np.rint(quotient) + zero, 0, levels) - zero) * step, np.float64)
    near = distance_to_tie(quotient) < _NEAR_TIE
    return made, np.where(near, float(step) ** 2, 0.0)


def _scale(x: Array, levels: int) -> tuple[np.float32, np.float32]:
    """Return the step of `levels` steps over the range of x and 0, and the integer of 0."""
    wide = x.astype(np.float32)
    low, high = min(wide.min(initial=0.0), np.float32(0.0)), max(wide.max(initial=0.0), np.float32(0.0))
    step = np.float32((high - low) / np.float32(levels)) or np.float32(1.0)
    return step, np.float32(np.rint(-low / step))


def _dynamic(step: Step, data: FitData) -> Fit | None:
    """Return the nearest form of a dynamically quantized product: torch's or ONNX Runtime's, per tensor or per feature."""
    assert isinstance(step, Linear)
    if not np.isfinite(data.actual).all():
        return None
    weight, best = step.site.parameters["weight"], None
    inputs = [_operands(step.inputs, levels) for levels in (255, 127)]
    for axis, steps in product((None, 1), (127.0, 127.5)):
        levels, scale = _signed_bytes(weight, axis, steps)
        rounded = with_parameters(step, weight=as_array(levels * scale, np.float64))
        for operands, tied in inputs:
            value = operands @ rounded.site.parameters["weight"].T + step.bias
            left = _squares_left(data, value)
            if best is None or left < best[0]:
                best = (left, rounded, value, tied)
    assert best is not None
    _, rounded, value, tied = best
    squares = rounded.site.parameters["weight"].T ** 2

    def slack(_: Altered, __: Arithmetic) -> Array:
        return as_array(tied @ squares)

    return Fit(Altered(rounded, lambda _: value, slack), 0)


def _signed_bytes(weight: Array, axis: int | None, steps: float) -> tuple[Single, Single]:
    """Return a weight as integers −128 … 127 and their scale, max |w| / `steps` per tensor (`axis` None) or output feature (1)."""
    w = weight.astype(np.float32)
    scale = np.abs(w).max(axis, keepdims=True) / np.float32(steps)
    return as_array(np.clip(np.rint(quotients(w, scale)), -128, 127)), as_array(scale)


def _squares_left(data: FitData, value: Array) -> float:
    """Return the sum of the squared differences of the candidate's array and `value` over the judged elements."""
    return float((np.where(data.judged, data.actual - value, 0.0) ** 2).sum())


def _saturated(step: Step, data: FitData) -> Fit | None:
    """Return the nearest form of a product of unsigned and signed bytes in which the sum of two products is limited to 16 bits."""
    assert isinstance(step, Linear)
    weight, inputs = step.site.parameters["weight"], step.inputs.reshape(-1, step.inputs.shape[-1])
    if not np.isfinite(data.actual).all() or inputs.shape[0] * weight.size > MOST_PRODUCTS:
        return None
    operands, tied = _operands(step.inputs, 255)
    unit, zero = (float(x) for x in _scale(step.inputs, 255))
    made = np.rint(operands / unit) + zero  # 0 … 255
    best = None
    for axis, steps in product((None, 1), (127.0, 127.5)):
        levels, scale = _signed_bytes(weight, axis, steps)
        sums, saturates = _paired_sums(made.reshape(inputs.shape), levels)
        value = ((sums - zero * levels.sum(1)) * unit * scale[:, 0]).reshape(step.value.shape) + step.bias
        left = _squares_left(data, value)
        if saturates and (best is None or left < best[0]):
            best = (left, as_array(value, np.float64), as_array(levels * scale, np.float64))
    if best is None:
        return None
    _, value, rounded = best

    def slack(_: Altered, __: Arithmetic) -> Array:
        return as_array(tied @ rounded.T**2)

    return Fit(Altered(with_parameters(step, weight=rounded), lambda _: value, slack), 0)


def _paired_sums(inputs: Array, levels: Single) -> tuple[Array, bool]:
    """Return Σ of min(max(a_2i w_2i + a_(2i+1) w_(2i+1), −2^15), 2^15 − 1), (N, O), and whether any of the limits acts."""
    odd = inputs.shape[1] % 2
    a, w = (np.pad(x.astype(np.float32), ((0, 0), (0, odd))) for x in (inputs, levels))
    sums, saturates = np.empty((len(a), len(w))), False
    for row, x in enumerate(a):
        pairs = x[::2] * w[:, ::2] + x[1::2] * w[:, 1::2]  # exact: below 2^24
        limited = np.clip(pairs, -(2.0**15), 2.0**15 - 1.0)
        saturates = saturates or not np.array_equal(limited, pairs)
        sums[row] = limited.sum(1, dtype=np.float64)
    return sums, saturates


def _unsigned(step: Step, data: FitData) -> Fit | None:
    """Return the function's result in 256 levels from 0 to the largest result; a level next to a tie may be the other one."""
    largest = float(data.actual.max(initial=0.0))
    if not largest > 0.0 or not np.isfinite(data.actual).all():
        return None
    unit = largest / 255.0

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        own, quotient = altered.inner.roundings(arithmetic), altered.inner.value / unit
        error = data.largest * np.sqrt(own.variance()) / unit + as_array(own.bound) / unit
        return np.where(distance_to_tie(quotient) <= error, unit**2, 0.0)

    return Fit(Altered(step, lambda inner: np.clip(np.rint(inner.value / unit), 0.0, 255.0) * unit, slack), 1, "step", unit)


QUANTIZED_INPUTS = (
    Fitted("precision-int8-dynamic", LINEARS, "weights and inputs are rounded to int8, with the inputs' step computed per call",
           "constructed", _dynamic, "quantize_dynamic of torch or of ONNX Runtime", fix=_UNQUANTIZED),
    Fitted("precision-int8-saturated", LINEARS,
           "weights and inputs are rounded to eight bits, and sums of two products are limited to sixteen bits", "constructed",
           _saturated, "an integer kernel for x86 without VNNI, with weights of eight bits",
           equation="y = Σ_i min(max(x_2i w_2i + x_(2i+1) w_(2i+1), −2^15), 2^15 − 1) + b, in integers",
           fix="Use weights of seven bits (reduce_range), or a processor with VNNI; or run without quantisation."),
)  # fmt: skip
"""The faults of dynamic quantization, in which the scale of the inputs depends on all inputs of a call, including padding."""

UNSIGNED = Fitted(
    "result-unsigned-bytes", FUNCTIONS, "the result is rounded to 256 multiples of {value} from zero up: none is negative",
    "constructed", _unsigned, "a quantiser to unsigned bytes, whatever the activation function", is_largest_error=True,
    equation="y = s min(max(round(f(x) / s), 0), 255)", fix=_UNQUANTIZED,
)  # fmt: skip
"""The fault of an activation that is quantized without a sign."""


_STARTS, _STEPS = 32, 24  # Limits of the time only: a limit that is not found leaves a residual that the judge does not accept.


def _clipped(step: Step, data: FitData) -> Fit | None:
    """Return the layer with the limit that leaves least of the residual; None if there is none below the largest input."""
    assert isinstance(step, Linear)
    x, found, allowed = (a[:MOST_ROWS] for a in data.rows(step.inputs, data.actual, data.allowed))
    if len(x) < LEAST_ROWS or not data.is_finite or step.parents[0].shape != step.inputs.shape:
        return None
    weight = step.site.parameters["weight"]
    limit = _limit(x, weight, step.bias, found, allowed)
    if limit is None:
        return None
    c, deviation = limit
    inputs = np.clip(step.parents[0], -c, c)

    def slack(_: Altered, arithmetic: Arithmetic) -> Array:
        stored = np.where(np.abs(step.inputs) > c, arithmetic.storage.rounding_variance(np.full_like(step.inputs, c)), 0.0)
        return as_array(stored @ weight.T**2)

    return Fit(with_slack(step.replaced(parents=(inputs,)), slack), 1, "limit", c, deviation)


def _limit(x: Array, weight: Array, bias: Array | float, found: Array, allowed: Array) -> tuple[float, float] | None:
    """Return the limit c of the inputs x by least squares, and its standard deviation; None if it is not below the largest input.

    Args:
        x: inputs, (N, I).
        weight: the weight, (O, I).
        bias: the bias, (O,).
        found: the candidate's results, (N, O).
        allowed: their allowed errors, (N, O).
    """
    sizes = np.abs(x)

    def left(c: float) -> Array:
        return as_array((found - np.clip(x, -c, c) @ weight.T - bias) / allowed)

    ranks = np.unique(np.geomspace(1, sizes.size, _STARTS).astype(int))  # How many inputs are beyond the limit.
    c = min(map(float, np.append(-np.sort(-sizes, axis=None), 0.0)[ranks]), key=lambda c: float((left(c) ** 2).sum()))
    energy = 0.0
    for _ in range(_STEPS):
        slope = np.where(sizes > c, np.sign(x), 0.0) @ weight.T / allowed
        energy = float((slope**2).sum())
        if not energy > 0.0:
            return None
        moved = float((slope * left(c)).sum()) / energy
        c += moved
        if abs(moved) <= np.finfo(np.float64).eps * abs(c):
            break
    return (c, energy**-0.5) if 0.0 < c < float(sizes.max()) else None


CLIPPED_INPUTS = (
    Fitted("inputs-clipped", LINEARS, "its inputs are limited to ±{value}", "constructed", _clipped,
           "a static range of quantised activations that is calibrated on too small values",
           equation="y = min(max(x, −c), c) Wᵀ + b",
           fix="Calibrate the range on inputs like these, or compute it in each call.", of_one_number=True),
)  # fmt: skip


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
