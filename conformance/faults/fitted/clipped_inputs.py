"""The fitted fault of a linear layer whose inputs are limited to ±c, as by a static range of quantisation that is too small.

The result y(c) = min(max(x, −c), c) Wᵀ + b is linear in c between the magnitudes of the inputs, with the slope

    ∂y_no/∂c = Σ_k sign(x_nk) [|x_nk| > c] w_ok,

so c is found by Gauss–Newton steps from the best of some limits, which clip 1 to N of the N inputs; these numbers form a
geometric series. Its standard deviation is (Σ (∂y/∂c)²/a²)^(−1/2) for results of the error a.
"""

import numpy as np

from conformance.faults.altered import Altered, with_slack
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, MOST_ROWS, Fit, FitData, Fitted
from conformance.faults.kinds import LINEARS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

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
