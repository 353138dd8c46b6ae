"""The fitted fault of scaled columns: each input of a linear layer is multiplied by a factor, as in half of a smoothing.

SmoothQuant (Xiao et al. 2023, equation 3) computes (x / f) (f ∘ W)ᵀ with a factor f_k per input. If only one of the two is done,

    y_no = Σ_k f_k x_nk w_ok + b_o,

which is linear in the factors. With R = y − b they minimize Σ (R_no − Σ_k f_k x_nk w_ok)², so that they solve the normal equations

    Σ_l (Xᵀ X)_kl (Wᵀ W)_kl f_l = Σ_no x_nk R_no w_ok,

of the size of the number of inputs. A few rows suffice, since each has as many equations as there are outputs. The standard
deviation of f_k is at least σ / √(Σ_n x_nk² Σ_o w_ok²), that for known other factors. No smoothing has a factor of 0, which is an
input that is not read, as in a sum over one rank.
"""

import math

import numpy as np

from conformance.faults.changes import with_stored_weight
from conformance.faults.fault import LINEARS, MOST_OPERATIONS
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, TINY, Fit, FitData, Fitted, relative_error
from conformance.faults.fitted.weight_structure import index_of
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear


def factors_of(step: Step, data: FitData) -> tuple[Array, Array] | None:
    """Return the factor of each input of a linear layer and the largest error of each; None unless each has three results.

    The factors are fitted to whole rows, whose elements have similar errors. The error is that for known other factors.
    """
    assert isinstance(step, Linear)
    weight, (x, found) = step.site.parameters["weight"], data.rows(step.inputs, data.actual)
    inputs = weight.shape[1]
    if inputs**3 > MOST_OPERATIONS or LEAST_ROWS * inputs > found.size or not np.isfinite(found).all():
        return None
    normal = (x.T @ x) * (weight.T @ weight)
    right = (x * ((found - step.bias) @ weight)).sum(0)
    sizes = np.maximum(np.diagonal(normal), TINY)
    error = data.threshold * float(np.median(data.allowed[data.judged])) / np.sqrt(sizes)
    return as_array(np.linalg.lstsq(normal, right, rcond=None)[0], np.float64), error


def _scaled_columns(step: Step, data: FitData) -> Fit | None:
    """Return the layer with a factor for each input; None if there are too few results, and if a factor is 0.

    A factor is 0 if it differs from 1, but not from 0, by more than its error.
    """
    fit = factors_of(step, data)
    if fit is None:
        return None
    factors, error = fit
    if ((np.abs(factors) <= error) & (np.abs(factors - 1.0) > error)).any():
        return None
    assert isinstance(step, Linear)
    weight, (x, found, allowed) = step.site.parameters["weight"], data.rows(step.inputs, data.actual, data.allowed)
    scaled = weight * factors
    product = found - step.bias
    in_units = (product / allowed, x @ weight.T / allowed, x @ scaled.T / allowed)
    if _is_one_factor(x, weight, product, allowed, data.largest) or not _prefers_factors(*in_units, len(factors)):
        return None
    return Fit(with_stored_weight(step, scaled), len(factors), *factors_in_words("input", factors, error))


def _is_one_factor(x: Array, weight: Array, found: Array, allowed: Array, most: float) -> bool:
    """Return whether one factor of the product leaves no error beyond those of the results and of the stored, scaled weight.

    The rounding of a weight is an error that all rows of a batch share, which factors of the inputs can follow.
    """
    right = x @ weight.T
    common = float(np.vdot(right / allowed, found / allowed)) / max(float(((right / allowed) ** 2).sum()), TINY)
    unit = relative_error(allowed, found)
    stored = x**2 @ ((unit * common * weight) ** 2).T
    room = most * np.sqrt((max(abs(common), 1.0) * allowed) ** 2 + stored)
    return bool((np.abs(found - common * right) <= room).all())


def factors_in_words(what: str, factors: Array, error: Array) -> tuple[str, float]:
    """Return in words which inputs, or outputs, have a factor other than 1, and that which differs most in units of its error."""
    differs = np.abs(factors - 1.0) > error
    if not differs.any():
        return "", 0.0
    most = int((np.abs(factors - 1.0) / error).argmax())
    if differs.sum() == 1:
        return f"of {what} {most},", float(factors[most])
    which = f"of {what}s {index_of(differs)}"
    is_common = (np.abs(factors - factors[most]) <= error + error[most])[differs].all()
    return f"{which}," if is_common else f"{which}, that of {what} {most} is", float(factors[most])


def _prefers_factors(found: Array, right: Array, scaled: Array, count: int) -> bool:
    """Return whether the Bayesian information criterion (Schwarz 1978) prefers `count` factors to one of the whole product.

    All arrays are in units of the allowed error of each result.

    With n results and the sums of squares left by one factor and by all, n ln(left by one / left by all) > (count − 1) ln n.
    """
    common = float(np.vdot(right, found)) / max(float(np.vdot(right, right)), TINY)
    by_one, by_all = (float(((found - value) ** 2).sum()) for value in (common * right, scaled))
    return by_one > 0.0 and found.size * math.log(by_one / max(by_all, TINY)) > (count - 1) * math.log(found.size)


SCALED_COLUMNS = (
    Fitted("inputs-scaled", LINEARS, "the inputs, or the columns of the weight, are multiplied by a factor each", "constructed",
           _scaled_columns, "SmoothQuant: the weight is multiplied by the factors and the norm before it is not divided by them, "
           "or the other way round",
           equation="y_o = Σ_k f_k x_k w_ok + b_o",
           fix="Divide the inputs by the factors by which the columns of the weight are multiplied, or do neither.",
           estimates="the factor"),
)  # fmt: skip
