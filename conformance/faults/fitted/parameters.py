"""Fitted faults of parameters: weights, biases, norms or tables other than the checkpoint's, estimated from the array.

Wherever an assignment (`differences.assignment`) makes the estimated parameters of the right ones, the layer with it is tried
first: it has fewer numbers, which are fitted anew to the result.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.faults.changes import Altered, with_slack
from conformance.faults.fault import LINEARS, MOST_OPERATIONS, with_parameters
from conformance.faults.fitted.differences import (
    Assignment,
    Estimated,
    assignment,
    block_of,
    counted,
    elements_in_words,
    ends_before_number,
)
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, TINY, Fit, FitData, Fitted, relative_error
from conformance.model.batch import Ids
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_EPSILON = float(np.finfo(np.float64).eps)
Layer = Callable[[Mapping[str, Array]], Step]  # The layer or norm with other parameters, by role.


def _of_stored(step: Step, parameters: Mapping[str, Array]) -> Altered:
    """Return the layer or norm with other parameters, by role, of which those that differ may be rounded to storage."""
    right = step.site.parameters

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        rounded = {
            role: np.where(parameter != right.get(role, 0.0), arithmetic.storage.rounding_variance(parameter), 0.0)
            for role, parameter in parameters.items()
        }
        weight, bias = (rounded.get(role, np.zeros(())) for role in ("weight", "bias"))
        inner = altered.inner
        if isinstance(inner, Linear):
            return as_array((inner.inputs**2 @ weight.T if weight.ndim else 0.0) + np.broadcast_to(bias, inner.value.shape))
        return as_array(_base(inner) ** 2 * weight + bias)

    return with_slack(with_parameters(step, **parameters), slack)


def _assigned(step: Step, data: FitData, layer: Layer, estimates: Mapping[str, Estimated]) -> Fit | None:
    """Return the layer with the assignments that make its parameters; None unless each parameter that differs has one.

    The text has the code of each, as `query.weight[0:8] *= 0.5; query.bias[:] =`, and ends before the last number.
    """
    possible = {role: assignment(estimated) for role, estimated in estimates.items() if estimated.differs.any()}
    each = {role: its for role, its in possible.items() if its is not None}
    if not each or len(each) < len(possible):
        return None
    sizes = {role: float(np.abs(estimates[role].right).max()) for role in each}
    values, deviations = _numbers(step, data, layer, each, sizes)
    codes = [f"{_name(step, role)}{its.code}" for role, its in each.items()]
    text = "; ".join([*(f"{code} {value:.7g}" for code, value in zip(codes[:-1], values.values(), strict=False)), codes[-1]])
    last, free = [*each][-1], sum(its.free for its in each.values())
    return Fit(_of_assignments(layer, each, values), free, text, values[last], deviations[last])


def _of_assignments(layer: Layer, each: Mapping[str, Assignment], values: Mapping[str, float]) -> Step:
    """Return the layer with the parameters that the assignments make with these numbers, by role."""
    return layer({role: its.applied(values[role]) for role, its in each.items()})


def _numbers(
    step: Step, data: FitData, layer: Layer, each: Mapping[str, Assignment], sizes: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the number of each assignment, and its standard deviation, by role; 0 for one that is not estimated.

    Estimated numbers are fitted anew to the result, a linear function of them: estimates of parameters have large errors if the
    inputs nearly depend on each other. Stored parameters, which are of these sizes, have errors that all rows share.
    """
    values, deviations = {role: its.value for role, its in each.items()}, dict.fromkeys(each, 0.0)
    free = [role for role, its in each.items() if its.is_estimated]
    if not free:
        return values, deviations
    unit, base = relative_error(data.allowed[data.judged], step.value[data.judged]), _of_assignments(layer, each, values).value
    weight = np.where(data.judged, 1.0 / np.hypot(data.allowed, unit * data.actual), 0.0)
    raised = (_of_assignments(layer, each, {**values, role: values[role] + 1.0}).value for role in free)
    slopes = np.stack([(weight * (value - base)).ravel() for value in raised], 1)
    residual = (weight * np.where(data.judged, data.actual - base, 0.0)).ravel()
    moves, spreads = np.linalg.lstsq(slopes, residual, rcond=None)[0], np.sqrt(np.diagonal(np.linalg.pinv(slopes.T @ slopes)))
    for role, move, spread in zip(free, moves, spreads, strict=True):
        values[role] += float(move)
        deviations[role] = math.hypot(spread, unit * max(abs(values[role]), sizes[role]))
    return values, deviations


def _name(step: Step, role: str) -> str:
    """Return Hugging Face's name of a parameter."""
    return step.site.activation.parameters.get(role, role)


# The weight and the bias of a linear layer.


@dataclass(frozen=True, eq=False)
class _Solution:
    """Weight and bias of a linear layer by least squares.

    Attributes:
        weight, bias: the parameters W′, (O, I), and b′, (O,).
        spread: the standard deviation of each parameter of an output whose results have errors of size 1, (I + 1,).
        errors: the RMS error of the results of each output, (O,).
        rank: the number of parameters of an output that the inputs determine.
        slack: variance by which a row's error exceeds that of a result, since the parameters follow the errors of other rows.
    """

    weight: Array
    bias: Array
    spread: Array
    errors: Array
    rank: int
    slack: Array


def _solved(step: Linear, data: FitData) -> _Solution | None:
    """Return the least squares of the results; None unless more rows differ than the rank of the inputs.

    The correction of the right parameters is fitted, of minimum norm: they are kept where the inputs do not determine them, as in
    the direction in which the output of a norm is constant. A second fit corrects the rounding errors of the first. Outputs that
    are 0 in every row have the parameters 0.

    With A the inputs and a 1, and H = A A⁺, the residual at row i is (1 − hᵢᵢ) eᵢ − Σⱼ hᵢⱼ eⱼ over j ≠ i. Since H² = H, that sum
    has the variance hᵢᵢ (1 − hᵢᵢ) σ² for the mean square σ² of the errors of an output. It exceeds the error of a small result.
    """
    inputs, actual = data.rows(step.inputs, data.actual)
    if not np.isfinite(actual).all():
        return None
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
    left, sizes, right = np.linalg.svd(columns, full_matrices=False)
    kept = sizes > sizes[0] * max(columns.shape) * _EPSILON
    left, inverse = left[:, kept], right[kept].T / sizes[kept]
    if len(np.unique(inputs, axis=0)) <= len(left.T):
        return None
    some = as_array((actual != 0.0).any(0))
    both = np.concatenate([np.where(some[:, None], step.site.parameters["weight"], 0.0).T, (step.bias * some)[None]])
    for _ in range(2):
        both = both + inverse @ (left.T @ (actual - columns @ both))
    errors, leverage = _errors_of_outputs(step, data), np.square(left).sum(1)
    slack = np.zeros(step.value.shape)
    slack[data.judged.any(-1)] = np.outer(leverage * (1.0 - leverage), errors**2)
    return _Solution(both[:-1].T, both[-1], np.sqrt(np.square(inverse).sum(1)), errors, len(left.T), slack)


def _of_solution(step: Linear, solved: _Solution) -> Step:
    """Return the layer with weight and bias by least squares."""
    return with_slack(with_parameters(step, weight=solved.weight, bias=solved.bias), lambda _, __: solved.slack)


def _errors_of_outputs(step: Step, data: FitData) -> Array:
    """Return the RMS over the rows of the errors of each output, (O,), which grow with the result."""
    right, actual, allowed = (np.sqrt((x**2).mean(0)) for x in data.rows(step.value, data.actual, data.allowed))
    return as_array(allowed * np.maximum(actual / np.maximum(right, TINY), 1.0))


def _linear(step: Step, data: FitData) -> Fit | None:
    """Return the linear layer with another weight and bias; None unless more rows differ than the rank of the inputs.

    Only if the inputs determine all parameters are single ones compared with the right ones.
    """
    assert isinstance(step, Linear)
    solved = _solved(step, data)
    if solved is None:
        return None
    outputs, inputs = solved.weight.shape
    estimates = dict[str, Estimated]()
    if solved.rank == inputs + 1:
        unit = relative_error(data.allowed[data.judged], step.value[data.judged])
        most = data.most_deviations(solved.weight.size + solved.bias.size)
        for role, value, spread in (("weight", solved.weight, solved.spread[:-1]), ("bias", solved.bias, solved.spread[-1])):
            if role in step.site.parameters:
                deviation = np.hypot(np.multiply.outer(solved.errors, spread), unit * np.abs(value))
                estimates[role] = Estimated(step.site.parameters[role], value, as_array(deviation), most)
    assigned, wrong = _assigned(step, data, partial(_of_stored, step), estimates), _wrong_outputs(step, data)
    words = ends_before_number(
        f"{_name(step, 'weight')}, {counted(wrong, outputs, 'row', least='at least ')}" if len(wrong) else ""
    )
    columns: Mask = np.asarray(estimates["weight"].differs.any(0) if estimates else np.zeros(inputs, np.bool_))
    if 0 < LEAST_ROWS * columns.sum() <= inputs and _suffice(step, data, columns):
        block = block_of(np.ones(outputs, np.bool_), columns)
        words = f"{_name(step, 'weight')}{block}, number of columns", float(columns.sum())
    return Fit(_of_solution(step, solved), solved.rank * outputs, *words, simpler=_if_any(assigned))


def _suffice(step: Linear, data: FitData, columns: Mask) -> bool:
    """Return whether other weights of these inputs alone leave no more than the results' errors; others may differ by less."""
    inputs, change = data.rows(step.inputs, data.actual - step.value)
    left = np.linalg.svd(inputs[:, columns], full_matrices=False)[0]
    squares = ((change - left @ (left.T @ change)) ** 2).mean(0)
    return bool((squares <= data.largest_mean_square(*change.shape) * _errors_of_outputs(step, data) ** 2).all())


def _if_any(fit: Fit | None) -> tuple[Fit, ...]:
    return (fit,) if fit else ()


def _wrong_outputs(step: Step, data: FitData) -> Ids:
    """Return the outputs of a linear layer that have an error that is too large; others may differ by less."""
    residual = np.where(data.judged, data.actual - step.value, 0.0)
    return np.flatnonzero((np.abs(residual) > data.largest * data.allowed).any(tuple(range(residual.ndim - 1))))


# A factor and an addend of each output of a linear layer or norm, for which a few rows suffice.


def _base(step: Step) -> Array:
    """Return what the factors multiply: the product of a linear layer, or the normalized input."""
    if isinstance(step, Linear):
        return as_array(step.value - step.bias)
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    return with_parameters(step, weight=np.ones_like(gamma), bias=np.zeros_like(beta)).value


def _outputs(step: Step, data: FitData) -> Fit | None:
    """Return the layer or norm with another factor f and addend h of some outputs: y_no = f_o u_no + h_o, by least squares.

    In a norm they are γ and β, in a linear layer a factor of the weight's row and the bias. An output keeps the right ones from
    which its own differ by no more than their errors. None is returned unless three rows differ.
    """
    parameters, is_linear = step.site.parameters, isinstance(step, Linear)
    estimates = _factors_and_addends(step, data)
    wrong = {role: estimated for role, estimated in estimates.items() if estimated.differs.any()}
    if not wrong:
        return None

    def layer(other: Mapping[str, Array]) -> Step:
        if "weight" in other and is_linear:
            other = {**other, "weight": parameters["weight"] * other["weight"][:, None]}
        return _of_stored(step, other)

    role, first = next(iter(wrong.items()))
    what = f"{_name(step, role)}{', as factors of its rows' if is_linear and role == 'weight' else ''}"
    # Which elements differ is fitted as well, unless all do.
    free = sum((1 if its.differs.all() else 2) * int(its.differs.sum()) for its in wrong.values())
    faulty = layer({role: its.value for role, its in wrong.items()})
    return Fit(faulty, free, *elements_in_words(what, first), simpler=_if_any(_assigned(step, data, layer, wrong)))


def _factors_and_addends(step: Step, data: FitData) -> dict[str, Estimated]:
    """Return the factor and the addend of each output by least squares, as `weight` and `bias`; nothing for too few rows.

    The right factor is kept where the estimated one does not differ from it, and the addend then follows from the mean.
    """
    u, y = data.rows(_base(step), data.actual)
    if len(np.unique(y, axis=0)) < LEAST_ROWS or not np.isfinite(y).all():
        return {}
    factor = np.ones(u.shape[1]) if isinstance(step, Linear) else step.site.parameters["weight"]
    addend, some = step.site.parameters.get("bias", np.zeros(u.shape[1])), (y != 0.0).any(0)  # Results that are 0 have no errors.
    centred, mean, error = u - u.mean(0), u.mean(0), _errors_of_outputs(step, data) * some
    energy, most = np.maximum((centred**2).sum(0), TINY), data.most_deviations(2 * factor.size)
    f, h = factor * some, addend * some
    for _ in range(2):  # The second fit corrects the rounding errors of the first.
        residual = y - f * u - h
        change = (centred * residual).sum(0) / energy
        f, h = f + change, h + residual.mean(0) - change * mean
    unit = relative_error(data.allowed[data.judged], step.value[data.judged])
    factors = Estimated(factor, f, np.hypot(error / np.sqrt(energy), unit * np.abs(f)), most)
    h = np.where(factors.differs, h, addend + (y - factor * u - addend).mean(0))
    of_mean = np.where(factors.differs, factors.deviation * np.abs(mean), 0.0)
    addends = Estimated(addend, h, np.hypot(np.hypot(error / math.sqrt(len(y)), of_mean), unit * np.abs(h)), most)
    return {"weight": factors.where_it_differs, "bias": addends.where_it_differs}


# A weight that is drawn at random.

USUAL_RANGE = 0.02  # The default of BertConfig.initializer_range, often hard-coded in place of the config's value.
CUT = 2.0  # standard deviations at which TensorFlow's truncated_normal_initializer truncates
# Standard deviation of N(0, 1) truncated at ± c, √(1 − 2 c φ(c) / (2 Φ(c) − 1)), by which jax.nn.initializers divides.
KEPT = math.sqrt(1.0 - 2.0 * CUT * math.exp(-(CUT**2) / 2.0) / math.sqrt(2.0 * math.pi) / math.erf(CUT / math.sqrt(2.0)))


def _initial(step: Step, data: FitData) -> Fit | None:
    """Return a layer with a weight that gives the results, if it acts like one that is drawn, and the right one does not.

    With independent weights of mean 0 and standard deviation s, and X = U S Vᵀ the N judged inputs, the numbers

        z_io = Σ_n u_ni (y_no − b_o) / (S_i s)

    are independent and of variance 1, whatever N: no element of the weight has to be known. The bias b is the right one or 0; one
    that is drawn as well has one input more, 1. Trained weights are not isotropic, and have another scale. Directions i are left
    out in which errors of the results add more than the sampling error 1/√O.
    """
    assert isinstance(step, Linear)
    x, actual, right, allowed = data.rows(step.inputs, data.actual, step.value, data.allowed)
    if x.size * min(x.shape) > MOST_OPERATIONS or not np.isfinite(actual).all():
        return None
    # Errors are proportional to results, which may be much smaller or larger than the right ones.
    error = float(np.sqrt((allowed**2).mean() * (actual**2).mean() / max((right**2).mean(), TINY))) * actual.shape[1] ** 0.25
    of_config, uniform, none = step.site.architecture.initializer_range, 1.0 / math.sqrt(3.0 * x.shape[1]), np.zeros_like(step.bias)
    deviations = dict.fromkeys((of_config, KEPT * of_config, USUAL_RANGE, KEPT * USUAL_RANGE, uniform))
    own_bias, drawn_bias = (np.linalg.svd(a, full_matrices=False)[:2] for a in (x, np.concatenate([x, np.ones((len(x), 1))], 1)))
    draws = [(deviation, bias, own_bias) for deviation in deviations for bias in (none, step.bias)]
    for deviation, bias, (left, sizes) in (*draws, (uniform, none, drawn_bias)):
        kept = sizes * deviation > max(error, sizes[0] * deviation * max(x.shape) * _EPSILON)
        z, own = (left[:, kept].T @ (y - bias) / (sizes[kept] * deviation)[:, None] for y in (actual, right))
        # The deviation of n numbers has the relative error 1/√(2 n); one that is twice as large is excluded by ln 2 > t / √(2 n).
        if z.size <= data.threshold**2 / (2.0 * math.log(2.0) ** 2) or len(z) < 2:
            continue
        correlation = abs(float((z * own).sum())) / math.sqrt(float((z**2).sum() * (own**2).sum()) or 1.0)
        if _is_standard(z, data) and not _is_standard(own, data) and correlation <= data.threshold / math.sqrt(z.size):
            solved = _solved(step, data)
            if solved is not None:
                return Fit(_of_solution(step, solved), solved.weight.size, "deviation", deviation)
            weight = as_array(np.linalg.lstsq(x, actual - bias, rcond=None)[0].T)
            return Fit(with_parameters(step, weight=weight, bias=bias), weight.size, "deviation", deviation)
    return None


def _is_standard(z: Array, data: FitData) -> bool:
    """Return whether the mean squares of all numbers, of each row and of each column are those of variance 1, but for chance."""
    for axis in (None, 0, 1):
        squares = np.atleast_1d((z**2).mean(axis))
        over = data.largest_mean_square(z.size // squares.size, squares.size)
        if squares.max() > over or squares.min() < 2.0 - over:  # The lower tail is shorter (Laurent and Massart 2000, lemma 1).
            return False
    return True


# A mean and a deviation of each token of a norm.


def _statistics(step: Step, data: FitData) -> Fit | None:
    """Return the norm with a mean and a standard deviation fitted for each token to the normalized input, where gamma is not 0.

    With t = (y − β) / γ = (x − μ′) / σ′, n that of the correct norm, and c = n less its mean over the features, the least squares
    are t̄ = (μ − μ′) / σ′ and k = Σ c t / Σ c² = σ / σ′. Errors are in units of σ′, |t̄ − n̄| and |k − 1|; the largest is reported,
    that of μ′ or σ′, beyond its own uncertainty.
    """
    gamma, beta = step.site.parameters["weight"], step.site.parameters["bias"]
    seen, rows = gamma != 0.0, data.judged.any(-1)
    if seen.sum() <= 2 * LEAST_ROWS:
        return None
    normal, target, allowed = (
        _base(step),
        (data.actual - beta)[..., seen] / gamma[seen],
        data.allowed[..., seen] / np.abs(gamma[seen]),
    )
    centred = normal - normal[..., seen].mean(-1, keepdims=True)
    c = centred[..., seen]
    squares = np.maximum((c**2).sum(-1), TINY)
    slope, moved = (c * target).sum(-1) / squares, target.mean(-1) - normal[..., seen].mean(-1)
    value = gamma * (target.mean(-1)[..., None] + slope[..., None] * centred) + beta
    worst = []
    for of, error, noise in (
        ("deviation", np.abs(slope - 1.0), np.sqrt(((c * allowed) ** 2).sum(-1)) / squares),
        ("mean", np.abs(moved), np.sqrt((allowed**2).sum(-1)) / seen.sum()),
    ):
        beyond = np.where(rows, error - data.threshold * noise, -np.inf)
        at = int(beyond.argmax())
        worst.append((float(beyond.flat[at]), f"error of the {of}", float(error.flat[at]), float(noise.flat[at])))

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        return as_array(np.maximum(slope[..., None] ** 2 - 1.0, 0.0) * altered.inner.roundings(arithmetic).variance())

    return Fit(Altered(step, lambda _: np.where(data.judged, value, step.value), slack), 2 * int(rows.sum()), *max(worst)[1:])


# Those of another module.


def _of_module(step: Step, data: FitData) -> Fit | None:
    """Return the layer with the parameters of the other linear layer of the same roles and shapes that brings it nearest."""
    shapes, others = {role: p.shape for role, p in step.site.parameters.items()}, dict[str, Step]()
    if data.network is None or not data.is_finite:
        return None
    for name, row in data.network.table.items():
        if row.kind in LINEARS and name != step.site.activation.name:
            parameters = data.network.site(name).parameters
            if {role: p.shape for role, p in parameters.items()} == shapes:
                others[name] = with_parameters(step, **parameters)
    if not others:
        return None
    best = min(others, key=lambda name: data.distance(others[name].value))
    return Fit(others[best], 1, f"{best}, number of outputs", step.value.shape[-1])


def described(kinds: frozenset[str], fit: Callable[[Step, FitData], Fit | None]) -> Fitted:
    """Return the description of steps of these kinds by other parameters."""
    return Fitted("parameters-other", kinds, "the equation holds with other parameters than the checkpoint's", fit,
                  estimates="where they differ", is_description=True)  # fmt: skip


INITIAL = Fitted(
    "parameters-initial", LINEARS,
    "the weight is not the checkpoint's: it acts like random numbers of deviation {value}, as drawn at initialisation", _initial,
)  # fmt: skip

OTHER_WEIGHTS = (INITIAL, described(LINEARS, _linear))
"""Those that fit the weights of a linear layer, which needs more rows than the layer has inputs."""

FITTED_PARAMETERS = (
    Fitted("parameters-of-module", LINEARS, "the weight and the bias are those of another module", _of_module, estimates="whose"),
    *OTHER_WEIGHTS,
    described(LINEARS | {"norm"}, _outputs),
    Fitted("norm-statistics-other", frozenset({"norm"}), "the equation holds with another mean or deviation of each token: "
           "one of them is off by up to {value} deviations", _statistics, is_largest_error=True, per_token=True,
           is_description=True),
)  # fmt: skip
