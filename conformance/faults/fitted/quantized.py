"""The fitted fault of dynamic quantization: weights and inputs as integers, with a scale of the inputs computed in each call."""

from itertools import product

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fault import with_parameters
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.kinds import LINEARS
from conformance.faults.quantized import UNQUANTIZED, quotients
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_NEAR_TIE = 2.0**-10  # A quotient within this distance of a tie may be rounded either way, if its scale is stored in float16.


def _operands(x: Array, levels: int) -> tuple[Array, Array]:
    """Return the inputs as integers 0 … `levels` times a step, and the variance of those next to a tie.

    The step covers the range of all inputs and 0.
    """
    wide = x.astype(np.float32)
    low, high = min(wide.min(initial=0.0), np.float32(0.0)), max(wide.max(initial=0.0), np.float32(0.0))
    step = np.float32((high - low) / np.float32(levels)) or np.float32(1.0)
    zero, quotient = np.rint(-low / step), wide / step
    made = np.asarray((np.clip(np.rint(quotient) + zero, 0, levels) - zero) * step, np.float64)
    near = np.abs(quotient - np.floor(quotient) - np.float32(0.5)) < _NEAR_TIE
    return made, np.where(near, float(step) ** 2, 0.0)


def _dynamic(step: Step, data: FitData) -> Fit | None:
    """Return the nearest form of a dynamically quantized product: torch's or ONNX Runtime's, per tensor or per feature."""
    assert isinstance(step, Linear)
    if not np.isfinite(data.actual).all():
        return None
    weight, best = step.site.parameters["weight"], None
    inputs = [_operands(step.inputs, levels) for levels in (255, 127)]
    for axis, steps in product((None, 1), (127.0, 127.5)):
        rounded = with_parameters(step, weight=_symmetric(weight, axis, steps))
        for operands, tied in inputs:
            value = operands @ rounded.site.parameters["weight"].T + step.bias
            left = float((np.where(data.judged, data.actual - value, 0.0) ** 2).sum())
            if best is None or left < best[0]:
                best = (left, rounded, value, tied)
    assert best is not None
    _, rounded, value, tied = best
    squares = rounded.site.parameters["weight"].T ** 2

    def slack(_: Altered, __: Arithmetic) -> Array:
        return np.asarray(tied @ squares)

    return Fit(Altered(rounded, lambda _: value, slack), 0)


def _symmetric(weight: Array, axis: int | None, steps: float) -> Array:
    w = weight.astype(np.float32)
    step = np.abs(w).max(axis, keepdims=axis is not None) / np.float32(steps)
    return np.asarray(np.clip(np.rint(quotients(w, step)), -128, 127) * step, np.float64)


DYNAMIC = Fitted(
    "precision-int8-dynamic", LINEARS, "weights and inputs are rounded to int8, with the inputs' step computed per call",
    "constructed", _dynamic, "quantize_dynamic of torch or of ONNX Runtime", fix=UNQUANTIZED,
)  # fmt: skip
"""The fault of dynamic quantization, in which the scale of the inputs depends on all inputs of a call, including padding."""
