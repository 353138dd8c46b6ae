"""The fitted fault of a weight that is off by a matrix of low rank, as with an adapter (LoRA) that is merged or left active.

With the weight W + B A, of rank r, the residual of the N judged rows is R = Y − X Wᵀ − b = X (B A)ᵀ + noise, of rank r besides the
noise. The projection of R on the columns of X leaves the part that a weight can explain. Its singular values above the noise are
those above the threshold for an unknown noise level of Gavish and Donoho 2014, *The optimal hard threshold for singular values is
4/√3*, equation 5:

    τ = ω(β) · median singular value, ω(β) ≈ 0.56 β³ − 0.95 β² + 1.82 β + 1.43, β = the smaller size / the larger.

They are required to be above the largest singular value of rounding errors as well. With standard deviations a_no it is at most
max_n (Σ_o a_no²)^½ + max_o (Σ_n a_no²)^½ + t max a, except with the false-alarm probability of the threshold t (Bandeira and van
Handel 2016, *Sharp nonasymptotic bounds on the norm of random matrices with independent entries*, to leading order).

A change of full rank leaves such a residual too if the inputs lie near a few directions: with independent elements of one size ω,
X Δᵀ has about the singular values ω √O s_i(X), which fall as those of X do. ω √O is estimated by the median ratio of the r that are
found, which a bias that differs as well does not change. The rank is low only if the next one is below what such a change would
have there, ω √O s_(r+1)(X); by Weyl's inequality, the noise of the largest singular value τ_n may have moved it by as much as τ_n.

Inputs of which the different rows are linearly independent explain every residual, such as b f(n) with a factor f of each row.
Then the directions of the rows are required to follow the inputs. Without their means over the rows, X = L S Vᵀ, and Z = Lᵀ R has,
in its r directions of the outputs, the columns of S Vᵀ Aᵀ. For independent normal elements of A they have the matrix angular
central Gaussian distribution (Chikuse 1990, *The matrix angular central Gaussian distribution*). Its density relative to the
uniform one, that of directions which have nothing to do with the inputs, is with n rows of Z

    |S²|^(−r/2) (|Zᵀ S⁻² Z| / |Zᵀ Z|)^(−n/2),

which uniform directions bring above 1/p with a probability of at most p.

A change of r columns of the weight has rank r, too, but is no adapter (`columns_of`). Results of a few wrong rows, or of a few
wrong outputs, have a low rank as well; such residuals are 0 elsewhere. A wrong bias has rank 1; without the mean over the rows it
leaves nothing.

Where another layer of the candidate has an adapter, the fit alone decides: none of the alternatives need be refuted again.

The fitted fault of a weight of which a few columns differ: those of inputs that other code overwrites, copies or fills.

With W′ = W + Δ and Δ zero outside of the columns C, the residual of the N judged rows is X_C Δ_Cᵀ + noise, of the rank |C| as with
an adapter, from which `low_rank.columns_of` distinguishes it. The columns are then fitted by least squares.
"""

import math
from dataclasses import dataclass

import numpy as np

from conformance.faults.changes import Altered, variance_of_stored_weight, with_slack
from conformance.faults.fault import LINEARS, with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, TINY, Fit, FitData, Fitted, relative_error, takes_seconds
from conformance.faults.fitted.weight_structure import Estimated, assignment, index_of
from conformance.faults.fitted.wrong_rows import explains
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Mask, as_array
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Residual:
    """The residual of the N judged rows of a linear layer, with the part that a weight can explain as U S Vᵀ.

    Attributes:
        x, residual, right, allowed: inputs, (N, I), and residual, correct results and allowed errors, (N, O).
        left, values, directions: U, S and Vᵀ.
        known: the largest rank that this part can have.
        noise: the largest singular value that rounding errors may have.
        rank: how many singular values are above τ and above those of noise.
    """

    x: Array
    residual: Array
    right: Array
    allowed: Array
    left: Array
    values: Array
    directions: Array
    known: int
    noise: float
    rank: int


def residual_of(step: Linear, data: FitData) -> Residual | None:
    """Return the residual of a linear layer; None if it is not finite, or too large to decompose."""
    x, found, right, allowed = data.rows(step.inputs, data.actual, step.value, data.allowed)
    if not (takes_seconds(found) and takes_seconds(x)) or not np.isfinite(found).all():
        return None
    residual = found - right
    larger = np.sqrt((found**2).mean(0) / np.maximum((right**2).mean(0), TINY))
    allowed = allowed * np.maximum(larger, 1.0)  # A rounding error is proportional to the result.
    left, values, directions = np.linalg.svd(_explained_by_weight(x, residual), full_matrices=False)
    known = min(len(x), x.shape[1])
    noise = _largest_of_noise(allowed, data.threshold)
    rank = _rank(values[:known], (known, found.shape[1]), noise)
    return Residual(x, residual, right, allowed, left, values, directions, known, noise, rank)


def _low_rank(step: Step, data: FitData) -> Fit | None:
    """Return the layer with its weight changed by a matrix of the rank of the residual; None if that is not low.

    The rank is low if each of the fitted numbers, r (N + O − r), has at least three elements of the residual, and if more than 2 r
    rows and outputs have a residual: r of them have the rank r whatever they are.
    """
    assert isinstance(step, Linear)
    found = residual_of(step, data)
    if found is None or not found.rank:
        return None
    residual, known, rank = found.residual, found.known, found.rank
    outputs = residual.shape[1]
    varying = np.linalg.svd(residual - residual.mean(0), compute_uv=False)
    moved = np.abs(residual) > data.largest * found.allowed
    if (
        varying[0] <= found.noise
        or LEAST_ROWS * rank * (known + outputs - rank) > known * outputs
        or min(int(moved.any(1).sum()), int(moved.any(0).sum())) <= 2 * rank
        or not (data.is_known or _is_of_low_rank_alone(found, data))
    ):
        return None
    return Fit(_with_change(step, found), rank * (known + outputs - rank), "rank", float(rank))


def _is_of_low_rank_alone(found: Residual, data: FitData) -> bool:
    """Return whether the residual refutes what else leaves such a one: a change of full rank or of columns, and wrong rows."""
    return is_low(found) and columns_of(found) is None and _shows_a_product(found, data)


def _with_change(step: Linear, found: Residual) -> Altered:
    """Return the layer with its weight changed by the fitted matrix, which may be stored.

    The fit at a row of the judged ones is the residual of all, R, multiplied by a row of U Uᵀ, and so has the errors of R,
    likewise multiplied. Those of rounding the weight to storage need its elements. The fit shows the change in the directions of
    the inputs alone, `known` of I, from which the mean square of the rest is taken.
    """
    rank, left, weight = found.rank, found.left[:, : found.rank], step.site.parameters["weight"]
    to_left = np.linalg.lstsq(found.x, left, rcond=None)[0]  # (I, r): U = X · to_left
    change = ((to_left * found.values[:rank]) @ found.directions[:rank]).T
    merged = weight + change
    rounded = np.hypot(merged, np.linalg.norm(change, axis=1, keepdims=True) / np.sqrt(found.known))

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert isinstance(altered.inner, Linear)
        inputs = altered.inner.inputs
        of_residual = found.allowed**2 + variance_of_stored_weight(found.x, rounded, arithmetic)
        of_fit = ((inputs @ to_left) @ left.T) ** 2 @ of_residual
        return as_array(variance_of_stored_weight(inputs, rounded, arithmetic) + of_fit)

    return with_slack(with_parameters(step, weight=merged), slack)


def columns_of(found: Residual) -> Mask | None:
    """Return at most 2 r columns of the inputs that explain a residual of rank r; None if there are none, or too many for the rows.

    A change of r columns C leaves the residual X_C Δ_Cᵀ, whose left singular vectors U span X_C, so that the columns are those with
    the smallest |x_k − U Uᵀ x_k| / |x_k|. Those of an adapter span mixtures of all columns.
    """
    left = found.left[:, : found.rank]
    sizes = np.linalg.norm(found.x, axis=0)
    outside = np.linalg.norm(found.x - left @ (left.T @ found.x), axis=0)
    order = np.argsort(np.where(sizes > 0.0, outside / np.where(sizes > 0.0, sizes, 1.0), np.inf), kind="stable")
    most = min(2 * found.rank, len(found.x) // LEAST_ROWS, len(order) - 1)
    if most < found.rank:
        return None
    norms = _norms_without(found.x[:, order[:most]], found.residual)
    for count in range(found.rank, most + 1):
        # A matrix of rank r and Frobenius norm f has a singular value of at least f / √r.
        if norms[count - 1] > found.noise * math.sqrt(min(found.residual.shape)):
            continue
        chosen = found.x[:, order[:count]]
        rest = found.residual - chosen @ np.linalg.lstsq(chosen, found.residual, rcond=None)[0]
        if np.linalg.svd(rest, compute_uv=False)[0] <= found.noise:
            return np.isin(np.arange(len(order)), order[:count])
    return None


def _norms_without(columns: Array, residual: Array) -> Array:
    """Return for each count n the Frobenius norm of the residual without its projection on the first n columns."""
    basis = np.linalg.qr(columns)[0]
    projected = np.square(basis.T @ residual).sum(1)
    return as_array(np.sqrt(np.maximum(np.square(residual).sum() - np.cumsum(projected), 0.0)))


def _shows_a_product(found: Residual, data: FitData) -> bool:
    """Return whether the inputs could have refuted that the residual is a product of them, or its directions follow theirs."""
    different = len(np.unique(found.x, axis=0))
    return different > int(np.linalg.matrix_rank(found.x)) or _log_density(found) > -math.log(data.chance)


def _log_density(found: Residual) -> float:
    """Return the logarithm of the density of the directions of the rows relative to the uniform one; 0 if there are too few rows.

    Directions of the inputs are left out in which the result of a change of this size is below rounding errors.
    """
    x, residual = (a - a.mean(0) for a in (found.x, found.residual))
    left, sizes, _ = np.linalg.svd(x, full_matrices=False)
    values, outputs = np.linalg.svd(residual, full_matrices=False)[1:]
    rank = min(int((values > found.noise).sum()), found.rank)
    if not rank:
        return 0.0
    size = values[rank - 1] / np.linalg.norm(sizes)  # of the smallest of the r changes, for inputs of size 1
    least = max(float(np.sqrt((found.allowed**2).mean()) / size), float(sizes[0]) * max(x.shape) * _EPSILON)
    kept = sizes > least
    z, count = (left.T @ residual @ outputs[:rank].T)[kept], int(kept.sum())
    if count <= rank:
        return 0.0
    of_inputs, of_uniform = (np.linalg.slogdet(a.T @ a)[1] for a in (z / sizes[kept, None], z))
    return float(-rank * np.log(sizes[kept]).sum() - count / 2.0 * (of_inputs - of_uniform))


def _explained_by_weight(x: Array, residual: Array) -> Array:
    """Return the projection of the residual, (N, O), on the columns of the inputs x, (N, I)."""
    return as_array(x @ np.linalg.lstsq(x, residual, rcond=None)[0])


def _largest_of_noise(allowed: Array, threshold: float) -> float:
    """Return the largest singular value that errors of the sizes `allowed`, (N, O), may have."""
    rows, columns = (float(np.sqrt((allowed**2).sum(axis).max())) for axis in (1, 0))
    return rows + columns + threshold * float(allowed.max())


def _rank(values: Array, shape: tuple[int, int], noise: float) -> int:
    """Return how many singular values of a matrix of this shape are above τ and above those of noise."""
    beta = min(shape) / max(shape)
    factor = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    return int((values > max(factor * float(np.median(values)), noise)).sum())


def is_low(found: Residual) -> bool:
    """Return whether the singular values after the first r are below those of a change of full rank of the same size."""
    values, rank = found.values, found.rank
    of_inputs = as_array(np.linalg.svd(found.x, compute_uv=False), np.float64)
    if rank >= min(len(values), len(of_inputs)):
        return False
    size = float(np.median(values[:rank] / np.maximum(of_inputs[:rank], TINY)))
    return bool(values[rank] + found.noise < size * of_inputs[rank])


LOW_RANK = (
    Fitted("adapter", LINEARS, "the result is off by a matrix of rank {value}, as by an adapter (LoRA)", "constructed",
           _low_rank, "an adapter that is merged into the weight, merged twice, or left active",
           equation="y = x (W + s B A)ᵀ + b, B of r columns and A of r rows",
           fix="Load the weight without the adapter, or merge the adapter once."),
)  # fmt: skip


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
