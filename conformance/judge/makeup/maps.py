"""Another map of the same inputs: other weights of a linear step, another function of a pointwise one."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy import stats

from conformance.judge.makeup.case import Case, Finding, Noise
from conformance.judge.makeup.order import is_order, rules, told
from conformance.judge.statistics import FALSE_ALARM
from conformance.numerics.formats import Array
from conformance.oracle.maps import rows_times
from conformance.oracle.pointwise import Gelu, GeluTanh, Relu, Tanh
from conformance.oracle.products import Linear

CLOSE, WIDE = (-2, -1, 1, 2), (-3, -2, -1, 1, 2, 3)  # neighbours of the cubic, and of the quintic that says how far off it is


def linear_maps(case: Case) -> Iterator[Finding]:
    """x W + b, and whatever weights fit: W' and b' by least squares, where there are more different rows than inputs + 1."""
    if not isinstance(case.step, Linear):
        return
    weight, bias = case.step.site.parameters["weight"], case.step.site.parameters["bias"]
    if weight.shape[0] == weight.shape[1]:
        transposed = case.rows(rows_times(case.step.inputs, weight) + bias)
        yield case.tried("weight transposed", "the weight was used transposed: x W + b", transposed, case.noise_of(transposed))
    inputs = case.rows_of(case.step.inputs)
    fitted = _fitted_map(case, inputs)
    if fitted is None:
        return
    yield from _inputs_reordered(case, inputs, fitted[:-1].T)
    yield _other_weights(case, inputs, fitted)


def _fitted_map(case: Case, inputs: Array) -> Array | None:
    """(I + 1, O): W'ᵀ over b', rows weighted by the inverse of their typical sigma; None where it is not determined."""
    rows, width = inputs.shape
    if len(np.unique(inputs, axis=0)) <= width + 1:
        return None
    weights = 1.0 / np.median(case.noise.sigma, axis=1, keepdims=True)
    design, target = (
        np.hstack([inputs, np.ones((rows, 1))]) * weights,
        np.where(case.kept, case.made_rows, case.right_rows) * weights,
    )
    lengths = np.linalg.norm(design, axis=0)
    if not lengths.all():
        return None
    fitted, _, rank, _ = np.linalg.lstsq(design / lengths, target, rcond=None)
    return fitted / lengths[:, None] if rank == width + 1 else None


def _other_weights(case: Case, inputs: Array, fitted: Array) -> Finding:
    weight, bias = case.step.site.parameters["weight"], case.step.site.parameters["bias"]
    used = case.kept.any(0)
    new, old = fitted[:-1].T[used], weight[used]
    likeness = float((new * old).sum() / np.sqrt((new**2).sum() * (old**2).sum()))
    away = float(np.linalg.norm(new - old) / np.linalg.norm(old))
    sentence = (
        f"made is linear in the same input with other weights: they differ from the right ones by {away:.3g} of their norm "
        f"(correlation {likeness:.4f}), the bias by at most {np.abs(fitted[-1] - bias)[used].max():.3g}"
    )
    model = inputs @ fitted[:-1] + fitted[-1]
    growth = np.maximum(np.linalg.norm(fitted[:-1], axis=0) / np.linalg.norm(weight, axis=1), 1.0)
    freedom = fitted.shape[0] * int(used.sum())
    return case.tried("other weights", sentence, model, case.scaled_noise(np.broadcast_to(growth, model.shape)), freedom)


def _inputs_reordered(case: Case, inputs: Array, new: Array) -> Iterator[Finding]:
    """W' = W with its columns in another order: input features read in another order."""
    weight, bias = case.step.site.parameters["weight"], case.step.site.parameters["bias"]
    distances = (new**2).sum(0)[:, None] - 2.0 * new.T @ weight + (weight**2).sum(0)
    places = np.asarray(distances.argmin(1), np.int64)
    moved = np.flatnonzero(places != np.arange(len(places)))
    if not len(moved) or not is_order(places):
        return
    for rule, guess in rules("feature", places, moved, case.step.site.architecture):
        model = inputs @ weight[:, guess].T + bias
        sentence = f"the weight's input features are {rule or told(places, moved)}"
        finding = case.tried("weight permuted", sentence, model, case.noise_of(model), 1 if rule else len(moved))
        yield finding
        if finding.explained:
            return


def other_functions(case: Case) -> Iterator[Finding]:
    """A pointwise step whose result is a function of its input alone, if another one: neighbours in the input foretell it.

    Each result is compared with the cubic through its four neighbours in the order of the inputs. How far a cubic may be off is
    taken from how far it is from the quintic through six. Results whose interpolation is surer than the threshold count.
    """
    if not isinstance(case.step, (Gelu, GeluTanh, Relu, Tanh)):
        return
    points = _points(case)
    if points.x.size <= 2 * len(WIDE):
        return
    e, sharp, before = _foretold(points, case.limits[1])
    count = int(sharp.sum())
    if 2 * count <= e.size:
        return  # where most is too sparse or too wild to be foretold, nothing is known
    remaining, largest = sqrt(float((e[sharp] ** 2).mean())), max(float(e.max()), points.repeated)
    square = float((before[sharp] ** 2).mean())
    chance = float(stats.chi2.cdf(count * case.limits[0] ** 2 / square, count)) if square > 0.0 else 1.0
    passes = remaining <= case.limits[0] and largest <= case.limits[1] and chance <= FALSE_ALARM
    share = max(1.0 - remaining**2 / square, 0.0) if square > 0.0 else 0.0
    sentence = f"made is another function of the same input, {_examples(points)}"
    yield Finding("other function", sentence, (), passes, remaining if largest < inf else inf, share, 2 * len(WIDE))


@dataclass(frozen=True, eq=False)
class _Points:
    """Different inputs in order, what was made of each, its sigma and bound, and the largest difference at the same input."""

    x: Array
    y: Array
    sigma: Array
    bound: Array
    residual: Array
    repeated: float


def _points(case: Case) -> _Points:
    keep = case.kept
    x, y = case.rows(case.step.parents[0])[keep], case.made_rows[keep]
    sigma = np.hypot(case.noise.sigma, case.noise_of(case.made_rows).sigma)[keep]
    unique, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    apart = np.maximum(np.abs(y - y[first][inverse]) - 2.0 * case.noise.bound[keep], 0.0) / (sqrt(2.0) * sigma)
    residual, bound = (case.made_rows - case.right_rows)[keep], case.noise.bound[keep]
    return _Points(unique, y[first], sigma[first], bound[first], residual[first], float(apart.max(initial=0.0)))


def _foretold(points: _Points, limit: float) -> tuple[Array, Array, Array]:
    """Of each inner point: how far it is from the foretold, in sigma; whether that is sharp; and its residual in the same sigma."""
    inner = np.arange(3, points.x.size - 3)
    cubic, weights = _interpolated(points, inner, CLOSE)
    quintic, _ = _interpolated(points, inner, WIDE)
    near = inner[:, None] + np.array(CLOSE)
    sigma = np.sqrt(points.sigma[inner] ** 2 + (weights**2 * points.sigma[near] ** 2).sum(1))
    bound = points.bound[inner] + (np.abs(weights) * points.bound[near]).sum(1)
    curved = np.abs(cubic - quintic)
    e = np.maximum(np.abs(points.y[inner] - cubic) - bound - curved, 0.0) / sigma
    return e, curved + bound <= limit * sigma, points.residual[inner] / sigma


def _interpolated(points: _Points, at: Array, neighbours: tuple[int, ...]) -> tuple[Array, Array]:
    """Lagrange's polynomial through the neighbours, and its weights Π (x − x_m)/(x_j − x_m)."""
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
