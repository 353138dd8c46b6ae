"""The fitted fault of a weight of which a few columns differ: those of inputs that other code overwrites, copies or fills.

With W′ = W + Δ and Δ zero outside of the columns C, the residual of the N judged rows is X_C Δ_Cᵀ + noise, of the rank |C| as with
an adapter, from which `low_rank.columns_of` distinguishes it. The columns are then fitted by least squares.
"""

import math

import numpy as np

from conformance.faults.altered import Altered, with_slack
from conformance.faults.fault import with_parameters
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted, relative_error
from conformance.faults.fitted.low_rank import columns_of, is_low, residual_of
from conformance.faults.fitted.weight_structure import Estimated, assignment, index_of
from conformance.faults.fitted.wrong_rows import explains
from conformance.faults.kinds import LINEARS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear


def _few_columns(step: Step, data: FitData) -> Fit | None:
    """Return the layer with the columns that span the residual fitted to it; None if there are none, or too many for the rows."""
    assert isinstance(step, Linear)
    found = residual_of(step, data)
    columns = columns_of(found) if found is not None and found.rank and is_low(found) else None
    if found is None or columns is None:
        return None
    weight, x = step.site.parameters["weight"], found.x[:, columns]
    change = np.linalg.lstsq(x, found.residual, rcond=None)[0].T  # (O, |C|)
    other = np.array(weight)
    other[:, columns] += change

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert isinstance(altered.inner, Linear)
        return as_array(altered.inner.inputs[..., columns] ** 2 @ arithmetic.storage.rounding_variance(other[:, columns]).T)

    fitted = with_slack(with_parameters(step, weight=other), slack)
    errors = np.outer(np.sqrt((found.allowed**2).mean(0)), np.sqrt(np.diagonal(np.linalg.pinv(x.T @ x))))
    deviation = np.zeros_like(weight)
    unit = relative_error(found.allowed, found.right + found.residual)
    deviation[:, columns] = np.hypot(errors, unit * np.abs(other[:, columns]))  # A changed weight is rounded to storage.
    most = math.sqrt(data.threshold**2 + 2.0 * math.log(change.size))
    made = assignment(Estimated(weight, other, deviation, most))
    text = f"{step.site.activation.parameters['weight']}[:, {index_of(columns)}]"
    if made is None or not explains(step, data, {"weight": made}):
        return Fit(fitted, change.size, f"{text}, number of columns", float(columns.sum()))
    return Fit(fitted, change.size, f"{text}, as by weight{made.code}", made.value, made.deviation)


FEW_COLUMNS = (
    Fitted("weight-columns-other", LINEARS, "the equation holds with other numbers in some columns of the weight", "constructed",
           _few_columns, "columns that are overwritten, such as those of a head or of one shard",
           equation="y = x W′ᵀ + b, w′_ok = w_ok except for some of the inputs k",
           fix="Load every column of the weight from the checkpoint, and in its place.", estimates="the columns",
           is_description=True),
)  # fmt: skip
"""Tried before an adapter, which explains them as well."""
