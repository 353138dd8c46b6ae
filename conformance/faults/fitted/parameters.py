"""Fitted faults of parameters: weights, biases, norms or tables other than the checkpoint's, estimated from the array."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from conformance.faults.changes import Altered, with_slack
from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, MOST_ROWS, TINY, Fit, FitData, Fitted, relative_error
from conformance.faults.fitted.lookup_words import read_instead
from conformance.faults.fitted.weight_structure import Estimated
from conformance.faults.fitted.wrong_rows import Elements, with_assignments, wrong_outputs, wrong_table_rows
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.embeddings import positions
from conformance.oracle.linear import Linear

_EPSILON = float(np.finfo(np.float64).eps)
MOST_FEATURES = 4096  # A limit of work: with more features no other order is looked for, nor named.


def _linear(step: Step, data: FitData) -> Fit | None:
    """Return the linear layer with weight and bias by least squares; None unless more rows differ than the rank of the inputs.

    The correction of the right parameters is fitted, of minimum norm: they are kept where the inputs do not determine them, as in
    the direction in which the output of a norm is constant. A second fit corrects the rounding errors of the first. Outputs that
    are 0 in every row have the parameters 0.
    """
    assert isinstance(step, Linear)
    inputs, found = data.rows(step.inputs, data.actual)
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    rank = int(np.linalg.matrix_rank(columns))
    if len(np.unique(inputs, axis=0)) <= rank:
        return None
    some = as_array((found != 0.0).any(0))
    start = with_parameters(step, weight=np.where(some[:, None], step.site.parameters["weight"], 0.0), bias=step.bias * some)
    assert isinstance(start, Linear)
    fitted = _corrected(_corrected(start, data, columns), data, columns)
    named = wrong_outputs(step, data)
    if rank == columns.shape[1]:  # Otherwise, single elements are not determined.
        named = with_assignments(named, step, data, _estimated_linear(step, data, columns, fitted))
    return Fit(fitted, rank * step.value.shape[-1], *named)


def _linear_with_errors(step: Step, data: FitData) -> Fit | None:
    """Return the fit of `_linear`, which may be off at a row by the errors of the other rows, from which it is fitted as well.

    With A the inputs and a 1, and H = A A⁺, the residual at row i is (1 − hᵢᵢ) eᵢ − Σⱼ hᵢⱼ eⱼ over j ≠ i. Since H² = H, that sum
    has the variance hᵢᵢ (1 − hᵢᵢ) σ² for the mean square σ² of the errors of an output. It exceeds the error of a small result.
    """
    assert isinstance(step, Linear)
    fit = _linear(step, data)
    if fit is None:
        return None
    (inputs,) = data.rows(step.inputs)
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    leverage = np.square(left[:, values > values[0] * max(columns.shape) * _EPSILON]).sum(1)
    variance = np.zeros(step.value.shape)
    variance[data.judged.any(-1)] = np.outer(leverage * (1.0 - leverage), np.square(_errors_of_outputs(step, data)))
    return replace(fit, step=with_slack(fit.step, lambda altered, arithmetic: variance))


def _corrected(step: Linear, data: FitData, columns: Array) -> Linear:
    """Return the linear layer with its parameters corrected by the least squares of its residual, of minimum norm."""
    (residual,) = data.rows(data.actual - step.value)
    change = np.linalg.lstsq(columns, residual, rcond=None)[0]
    fitted = with_parameters(step, weight=step.site.parameters["weight"] + change[:-1].T, bias=step.bias + change[-1])
    assert isinstance(fitted, Linear)
    return fitted


def _estimated_linear(step: Linear, data: FitData, columns: Array, fitted: Linear) -> Mapping[str, Estimated]:
    """Return weight and bias with the standard deviations of their least squares, (AᵀA)⁻¹ for the inputs and a 1, A = `columns`."""
    weight, bias = fitted.site.parameters["weight"], fitted.bias
    spread = np.sqrt(np.diagonal(np.linalg.pinv(columns.T @ columns)))
    errors = _errors_of_outputs(step, data)
    return _estimated(step, data, weight=(weight, np.outer(errors, spread[:-1])), bias=(bias, errors * spread[-1]))


def _errors_of_outputs(step: Linear, data: FitData) -> Array:
    """Return the RMS over the rows of the errors of each output, (O,), which grow with the result."""
    rows = data.judged.any(-1)
    larger = np.maximum(_rms_over_rows(data.actual[rows]) / np.maximum(_rms_over_rows(step.value[rows]), TINY), 1.0)
    return as_array(larger * _rms_over_rows(data.allowed[rows]))


def _estimated(step: Step, data: FitData, **found: tuple[Array, Array]) -> Mapping[str, Estimated]:
    """Return estimates and standard deviations of parameters, by role, with the error of a changed parameter that is stored."""
    unit = relative_error(data.allowed[data.judged], step.value[data.judged])
    most = math.sqrt(data.threshold**2 + 2.0 * math.log(sum(value.size for value, _ in found.values())))
    return {
        role: Estimated(step.site.parameters[role], value, np.hypot(deviation, unit * np.abs(value)), most)
        for role, (value, deviation) in found.items()
        if role in step.site.parameters
    }


def _rms_over_rows(x: Array) -> Array:
    """Return the RMS of each feature over the rows, (O,), of x, (N, O)."""
    return as_array(np.sqrt((x**2).mean(0)))


def _other_bias(step: Step, data: FitData) -> Fit | None:
    """Return the linear layer with another bias, which is corrected by the mean of the residual over the rows.

    Only those corrections are made that exceed the noise of a mean, that of an element / √N for N rows: the bias may be right at
    some outputs, such as those of the first rank. None is returned unless their median exceeds the noise of a single element: a
    weight rounded to fewer digits changes the means, too, but only slightly.
    """
    rows = data.judged.any(-1)
    if "bias" not in step.site.parameters or len(np.unique(data.actual[rows], axis=0)) < LEAST_ROWS:
        return None
    moved = (data.actual - step.value)[rows].mean(0)
    noise = data.threshold * np.median(data.allowed[rows], 0)
    wrong = np.abs(moved) > noise / np.sqrt(rows.sum())
    if not wrong.any() or np.median((np.abs(moved) / noise)[wrong]) <= 1.0:
        return None
    bias = step.site.parameters["bias"] + np.where(wrong, moved, 0.0)
    free = int(wrong.sum()) * (1 if wrong.all() else 2)  # Which elements differ is fitted as well.
    return Fit(with_parameters(step, bias=bias), free, *wrong_outputs(step, data))


def _other_order(step: Step, data: FitData) -> Fit | None:
    """Return the linear layer with, for each output feature, the row of weight and bias whose result is nearest."""
    return _reordered(step, data, step.site.parameters)


def _other_order_of_weight(step: Step, data: FitData) -> Fit | None:
    """Return the linear layer with, for each output feature, the row of the weight whose result is nearest, and its own bias."""
    return _reordered(step, data, ("weight",)) if "bias" in step.site.parameters else None


def _reordered(step: Step, data: FitData, roles: Collection[str]) -> Fit | None:
    """Return the linear layer with the rows of these parameters in another order; the bias is fixed unless it is one of them.

    Of equal rows, a feature's own is the nearest.
    """
    assert isinstance(step, Linear)
    features, fixed = step.value.shape[-1], 0.0 if "bias" in roles else step.bias
    right, found = (a[:MOST_ROWS] - fixed for a in data.rows(step.value, data.actual))
    if features > MOST_FEATURES or len(right) < LEAST_ROWS:
        return None
    order = ((right**2).sum(0) - 2.0 * found.T @ right).argmin(1)
    moved = np.any([_differ_by_row(step.site.parameters[role], order) for role in roles], axis=0)
    if not moved.any():
        return None
    order = np.where(moved, order, np.arange(features))
    reordered = with_parameters(step, **{role: step.site.parameters[role][order] for role in roles})
    return Fit(reordered, int(moved.sum()), *read_instead(order, np.arange(features), np.ones(features, bool)))


def _differ_by_row(parameter: Array, order: Ids) -> Mask:
    """Return at which places another row is put in this order: one that is not equal to the row there."""
    other = np.asarray(parameter[order] != parameter)
    return as_array(other.any(1) if other.ndim > 1 else other)


def _affine(step: Step, data: FitData) -> Fit | None:
    """Return the norm with gamma and beta fitted for each feature to the normalized input.

    The corrections are fitted; a second fit corrects the rounding errors of the first.
    """
    rows = data.judged.any(-1)
    normal, target = _normalized(step).value[rows], data.actual[rows]
    if len(np.unique(target, axis=0)) <= 2:
        return None
    centred = normal - normal.mean(0)
    squares = np.maximum((centred**2).sum(0), TINY)
    fitted = step
    for _ in range(2):
        residual = target - fitted.value[rows]
        change = (centred * residual).sum(0) / squares
        gamma, beta = (fitted.site.parameters[role] for role in ("weight", "bias"))
        fitted = with_parameters(step, weight=gamma + change, bias=beta + residual.mean(0) - change * normal.mean(0))
    gamma, beta = (fitted.site.parameters[role] for role in ("weight", "bias"))
    deviations = np.sqrt(((centred * data.allowed[rows]) ** 2).sum(0)) / squares
    named = wrong_outputs(step, data, Elements(gamma, deviations))
    errors = np.hypot(_rms_over_rows(data.allowed[rows]) / math.sqrt(len(target)), deviations * normal.mean(0))  # of beta
    both = _estimated(step, data, weight=(gamma, deviations), bias=(beta, errors))
    return Fit(fitted, 2 * gamma.size, *with_assignments(named, step, data, both))


def _normalized(step: Step) -> Step:
    """Return the norm with gamma 1 and beta 0."""
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    return with_parameters(step, weight=np.ones_like(gamma), bias=np.zeros_like(beta))


def _statistics(step: Step, data: FitData) -> Fit | None:
    """Return the norm with a mean and a standard deviation fitted for each token to the normalized input, where gamma is not 0.

    With t = (y − β) / γ = (x − μ′) / σ′, n that of the correct norm, and c = n less its mean over the features, the least squares
    are t̄ = (μ − μ′) / σ′ and k = Σ c t / Σ c² = σ / σ′. Errors are in units of σ′, |t̄ − n̄| and |k − 1|; the largest is reported,
    that of μ′ or σ′, beyond its own uncertainty.
    """
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    seen = gamma != 0.0
    if seen.sum() <= 2 * LEAST_ROWS:
        return None
    normal, target = _normalized(step).value, ((data.actual - beta)[..., seen] / gamma[seen])
    centred = normal - normal[..., seen].mean(-1, keepdims=True)
    squares = np.maximum((centred[..., seen] ** 2).sum(-1, keepdims=True), TINY)
    slope = (centred[..., seen] * target).sum(-1, keepdims=True) / squares
    value = gamma * (target.mean(-1, keepdims=True) + slope * centred) + beta
    allowed, moved = data.allowed[..., seen] / np.abs(gamma[seen]), target.mean(-1) - normal[..., seen].mean(-1)
    of, off, noise = _largest_error(data, allowed, centred[..., seen], slope[..., 0], moved)

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return as_array(np.maximum(slope**2 - 1.0, 0.0) * altered.inner.roundings(arithmetic).variance())

    faulty = Altered(step, lambda _: np.where(data.judged, value, step.value), slack)
    return Fit(faulty, 2 * int(data.judged.any(-1).sum()), f"error of the {of}", off, noise)


def _largest_error(data: FitData, allowed: Array, centred: Array, slope: Array, moved: Array) -> tuple[str, float, float]:
    """Return whether the mean or the deviation is more wrong, by how much at most, and the standard deviation of that error.

    Args:
        data: the candidate's data.
        allowed: the allowed errors of the candidate's normalized input, (…, n).
        centred: the correct normalized input, without its mean, (…, n).
        slope: the factor k of each token, (…).
        moved: the addend t̄ − n̄ of each token, (…).
    """
    rows = data.judged.any(-1)
    noises = {
        "deviation": np.sqrt(((centred * allowed) ** 2).sum(-1)) / np.maximum((centred**2).sum(-1), TINY),
        "mean": np.sqrt((allowed**2).sum(-1)) / allowed.shape[-1],
    }
    errors = {"deviation": np.abs(slope - 1.0), "mean": np.abs(moved)}
    found = []
    for of, noise in noises.items():
        at = int(np.argmax(np.where(rows, errors[of] - data.threshold * noise, -np.inf)))
        found.append((float(errors[of].flat[at]), float(noise.flat[at]), of))
    error, deviation, of = max(found, key=lambda one: one[0] - data.threshold * one[1])
    return of, error, deviation


def _table(step: Step, data: FitData) -> Fit | None:
    """Return the look-up with a fitted row for each row of the table that is read; None unless some row is read twice."""
    width = step.value.shape[-1]
    rows = data.judged.any(-1).reshape(-1)
    read, found = data.rows(step.value, data.actual)
    _, first, which = np.unique(read, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(read):
        return None
    value = np.array(data.actual, np.float64).reshape(-1, width)
    value[rows] = found[first][which.reshape(-1)]
    named = wrong_table_rows(step, data, _rows_read(step))
    return Fit(Altered(step, lambda inner: value.reshape(inner.value.shape)), first.size * width, *named)


def _rows_read(step: Step) -> Ids:
    """Return the index of the row that each token reads of a table, (B, S) or (S,)."""
    if step.site.activation.kind == "position_lookup":
        return positions(step)
    return step.site.batch.input_ids if step.site.activation.kind == "word_lookup" else step.site.batch.types


OTHER = "the equation holds with other parameters than the checkpoint's"
_WHERE = "where they differ"

FITTED_BIASES_AND_ORDERS = (
    Fitted("bias-other", LINEARS, "the equation holds with another bias than the checkpoint's", "constructed",
           _other_bias, "another layer's bias, one part's bias for all parts of a fused product, or a bias not loaded",
           fix="Load each bias from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE,
           is_description=True),
    Fitted("features-reordered", LINEARS, "the features are in another order, or some are repeated", "constructed",
           _other_order, "rows of the weight in another layout",
           fix="Keep the order of the weight's rows.", estimates="the order of the features"),
    Fitted("weight-rows-reordered", LINEARS,
           "the rows of the weight are in another order, or some are repeated, and the bias is not",
           "constructed", _other_order_of_weight, "rows of the weight in another layout, such as that of rotary embeddings",
           equation="y_o = Σ_k x_k w_π(o)k + b_o",
           fix="Keep the order of the weight's rows, or reorder the bias in the same way.", estimates="the order of the rows"),
)  # fmt: skip

FITTED_PARAMETERS = (
    Fitted("parameters-other", LINEARS, OTHER, "constructed",
           _linear, "a decoder that is not tied to the word embeddings, or whose own weight, if it has one, was not loaded",
           only=("cls.predictions.decoder",),
           fix="Let the decoder use the weight of the word embeddings, or load its own where the checkpoint has one.",
           estimates=_WHERE, is_description=True),
    Fitted("parameters-other", LINEARS, OTHER, "constructed",
           _linear, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE,
           is_description=True),
    Fitted("norm-statistics-other", frozenset({"norm"}), "the equation holds with another mean or deviation of each token: "
           "one of them is off by up to {value} deviations", "constructed", _statistics,
           "a fast inverse root; statistics of something other than the token",
           is_largest_error=True, per_token=True,
           equation="y = γ · (x − μ′) / σ′ + β", fix="Normalise each token by its own mean and deviation, with an accurate root.",
           is_description=True),
    Fitted("parameters-other", frozenset({"norm"}), OTHER, "constructed",
           _affine, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE,
           is_description=True),
    Fitted("parameters-other", frozenset({"word_lookup", "position_lookup", "token_type_lookup"}),
           OTHER, "constructed", _table, "parameters that were not loaded, or trained further",
           fix="Load every parameter from the checkpoint, and fail on missing and unexpected names.", estimates=_WHERE,
           is_description=True),
)  # fmt: skip

OTHER_WEIGHTS = tuple(replace(one, fit=_linear_with_errors) for one in FITTED_PARAMETERS if one.fit is _linear)
"""The fits of other weights and biases to a batch that is not much larger than they require."""
