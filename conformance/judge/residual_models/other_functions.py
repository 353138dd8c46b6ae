"""Other functions of the same inputs: a linear step with other weights, or a pointwise step with another function."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import chdtr

from conformance.judge.residual_models.arrangement import is_order, rendered, rules
from conformance.judge.residual_models.residual_problem import ElementNoise, Places, ResidualFinding, ResidualProblem
from conformance.numerics.formats import Array, Mask, as_array
from conformance.numerics.thresholds import FALSE_ALARM, projection_threshold
from conformance.oracle.linear import Linear
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh

CLOSE, WIDE = (-2, -1, 1, 2), (-3, -2, -1, 1, 2, 3)  # neighbours for the cubic, and for the quintic that estimates its error
KINKS = 3  # jumps or bends that a piecewise function may have; each affects at most len(CLOSE) results


def transposed_weight(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding for x W + b in place of x Wᵀ + b, if the weight is square."""
    weight = case.step.site.parameters.get("weight", np.zeros(()))
    if isinstance(case.step, Linear) and weight.shape[0] == weight.shape[1]:
        model = (case.rows_of(case.step.inputs) @ weight + case.step.bias)[:, case.columns]
        yield case.finding_of("weight transposed", "the weight was used transposed: x W + b", model, case.noise_of(model))


def linear_maps(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield findings for other W' and b', fitted by least squares if there are more different rows than inputs + 1."""
    if not isinstance(case.step, Linear):
        return
    inputs = case.rows_of(case.step.inputs)
    fitted = _fitted_map(case, inputs)
    if fitted is None:
        return
    yield from _inputs_reordered(case, inputs, fitted.weight)
    yield _other_weights(case, inputs, fitted)


@dataclass(frozen=True, eq=False)
class _Map:
    """A linear map fitted by least squares.

    Attributes:
        weight: W', (O, I).
        bias: b', (O,).
        deviation: standard deviation of each b', (O,).
    """

    weight: Array
    bias: Array
    deviation: Array


def _fitted_map(case: ResidualProblem, inputs: Array) -> _Map | None:
    """Return the fitted map, or None if the rows do not determine it; a row's weight is the mean weight of its elements."""
    rows, width = inputs.shape
    if len(np.unique(inputs, axis=0)) <= width + 1:
        return None
    weights = case.root_weights.sum(1, keepdims=True) / case.kept.sum(1, keepdims=True)
    design, target = (
        np.hstack([inputs, np.ones((rows, 1))]) * weights,
        np.where(case.kept, case.actual_rows, case.expected_rows) * weights,
    )
    lengths = np.linalg.norm(design, axis=0)
    if not lengths.all():
        return None
    q, r = np.linalg.qr(design / lengths)
    # A column that is a linear combination of others leaves only rounding errors on the diagonal.
    if np.abs(np.diag(r)).min() <= rows * np.finfo(np.float64).eps:
        return None
    fitted = solve_triangular(r, q.T @ target)
    left = target - q @ (q.T @ target)
    # (AᵀA)⁻¹ is R⁻¹R⁻ᵀ; the bias comes last, where R⁻¹ has a single entry.
    variance = r[-1, -1] ** -2 * (left**2).sum(0) / (rows - width - 1)
    fitted = fitted / lengths[:, None]
    return _Map(fitted[:-1].T, fitted[-1], np.sqrt(variance) / lengths[-1])


def _own(case: ResidualProblem) -> tuple[Array, Array]:
    """Return the step's weight and bias for the outputs that fits use."""
    assert isinstance(case.step, Linear)
    return case.step.site.parameters["weight"][case.columns], case.step.bias[case.columns]


def _other_weights(case: ResidualProblem, inputs: Array, fitted: _Map) -> ResidualFinding:
    (weight, _), used = _own(case), case.kept.any(0)
    new, old = fitted.weight[used], weight[used]
    likeness = float((new * old).sum() / np.sqrt((new**2).sum() * (old**2).sum()))
    away = float(np.linalg.norm(new - old) / np.linalg.norm(old))
    sentence = (
        f"the result is linear in the same input with other weights: they differ from the correct ones by {away:.3g} times the "
        f"norm of these (correlation {likeness:.4f}); {_bias(case, fitted)}"
    )
    model = inputs @ fitted.weight.T + fitted.bias
    growth = np.maximum(np.linalg.norm(fitted.weight, axis=1) / np.linalg.norm(weight, axis=1), 1.0)
    freedom = (weight.shape[1] + 1) * int(used.sum())
    grown = case.scaled_noise(growth)
    noise = ElementNoise(np.hypot(grown.sigma, case.noise_of(model).sigma), grown.bound)
    return case.finding_of("other weights", sentence, model, noise, freedom)


def _bias(case: ResidualProblem, fitted: _Map) -> str:
    (_, bias), used = _own(case), case.kept.any(0)
    away, room = np.abs(fitted.bias - bias)[used], projection_threshold(FALSE_ALARM) * fitted.deviation[used]
    if np.all(away <= room):
        return "the bias is right"
    return "there is no bias" if np.all(np.abs(fitted.bias[used]) <= room) else f"the bias is off by up to {away.max():.3g}"


def _inputs_reordered(case: ResidualProblem, inputs: Array, new: Array) -> Iterator[ResidualFinding]:
    """Yield a finding if W' is W with its columns permuted: input features are read in another order."""
    weight, bias = _own(case)
    distances = (new**2).sum(0)[:, None] - 2.0 * new.T @ weight + (weight**2).sum(0)
    places = as_array(distances.argmin(1), np.int64)
    moved = np.flatnonzero(places != np.arange(len(places)))
    if not len(moved) or not is_order(places):
        return
    for rule, guess in rules("feature", places, moved, case.step.site.architecture):
        model = inputs @ weight[:, guess].T + bias
        sentence = f"the weight's input features are {rule or rendered(places, moved)}"
        finding = case.finding_of("weight permuted", sentence, model, case.noise_of(model), 1 if rule else len(moved))
        yield finding
        if finding.explained:
            return


def other_functions(case: ResidualProblem) -> Iterator[ResidualFinding]:
    """Yield a finding if a pointwise step computes another function of its input, so that neighbouring inputs predict results.

    Each result is compared with the cubic through its four neighbours in the order of the inputs. The cubic's error is estimated
    by its distance from the quintic through six neighbours. Only results whose interpolation error is below the threshold count.
    """
    if not isinstance(case.step, (Gelu, GeluTanh, Relu, Tanh)):
        return
    points = _points(case)
    if points.x.size <= 2 * len(WIDE):
        return
    e, sharp, before = _interpolation_errors(points, case.limits.max)
    kinked = e > case.limits.max
    sharp = sharp & ~kinked
    count = int(sharp.sum())
    if 2 * count <= e.size or kinked.sum() > KINKS * len(CLOSE):
        return  # too sparse or too irregular to be interpolated
    remaining = sqrt(float((e[sharp] ** 2).mean()))
    square = float((before[sharp] ** 2).mean())
    chance = float(chdtr(count, count * case.limits.rms**2 / square)) if square > 0.0 else 1.0
    passes = remaining <= case.limits.rms and points.repeated <= case.limits.max and chance <= FALSE_ALARM
    share = max(1.0 - remaining**2 / square, 0.0) if square > 0.0 else 0.0
    sentence = f"the result is another function of the same input, {_examples(points)}"
    yield ResidualFinding("other function", sentence, (), passes, remaining, share, 2 * len(WIDE))


@dataclass(frozen=True, eq=False)
class _Points:
    """Distinct inputs of a pointwise step in ascending order, and the result at each.

    Attributes:
        x: the inputs.
        y: the actual value at each input.
        sigma, bound: noise of each value.
        residual: actual minus expected value.
        repeated: the largest difference between values at equal inputs, in sigma.
    """

    x: Array
    y: Array
    sigma: Array
    bound: Array
    residual: Array
    repeated: float


def _points(case: ResidualProblem) -> _Points:
    keep = case.kept
    x, y = case.rows(case.step.parents[0])[keep], case.actual_rows[keep]
    sigma = np.hypot(case.noise.sigma, case.noise_of(case.actual_rows).sigma)[keep]
    unique, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    apart = np.maximum(np.abs(y - y[first][inverse]) - 2.0 * case.noise.bound[keep], 0.0) / (sqrt(2.0) * sigma)
    residual, bound = (case.actual_rows - case.expected_rows)[keep], case.noise.bound[keep]
    return _Points(unique, y[first], sigma[first], bound[first], residual[first], float(apart.max(initial=0.0)))


def _interpolation_errors(points: _Points, limit: float) -> tuple[Array, Mask, Array]:
    """Return three arrays over the inner points, errors and residuals in units of √(σ² + b²) of the interpolation.

    They are the distance from the interpolated value, whether the interpolation is accurate enough, and the residual.
    """
    inner = np.arange(3, points.x.size - 3)
    cubic, weights = _interpolated(points, inner, CLOSE)
    quintic, _ = _interpolated(points, inner, WIDE)
    near = inner[:, None] + np.array(CLOSE)
    variance = points.sigma**2 + points.bound**2  # a function's own error also varies between inputs
    scale = np.sqrt(variance[inner] + (weights**2 * variance[near]).sum(1))
    curved = np.abs(cubic - quintic)
    e = np.maximum(np.abs(points.y[inner] - cubic) - curved, 0.0) / scale
    return e, curved <= limit * scale, points.residual[inner] / scale


def _interpolated(points: _Points, at: Places, neighbours: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the values of Lagrange's polynomial through the neighbours, and its weights Π (x − x_m)/(x_j − x_m)."""
    nodes = points.x[at[:, None] + np.array(neighbours)]
    away = points.x[at][:, None] - nodes
    weights = np.ones_like(nodes)
    for j in range(len(neighbours)):
        for m in range(len(neighbours)):
            if m != j:
                weights[:, j] *= away[:, m] / (nodes[:, j] - nodes[:, m])
    return (weights * points.y[at[:, None] + np.array(neighbours)]).sum(1), weights


def _examples(points: _Points) -> str:
    quarters = np.linspace(0, points.x.size - 1, 5).astype(int)
    return "such as " + ", ".join(f"{points.y[i]:.4g} of {points.x[i]:.4g}" for i in quarters)
