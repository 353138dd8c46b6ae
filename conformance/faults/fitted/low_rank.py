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
X Δᵀ has about the singular values ω √O s_i(X), which fall as those of X do. ω √O is estimated by the r that are found. The rank is
low only if the next one is below what such a change would have there, ω √O s_(r+1)(X); by Weyl's inequality, the noise of the
largest singular value τ_n may have moved it by as much as τ_n.

Results of a few wrong rows, or of a few wrong outputs, have a low rank as well; such residuals are 0 elsewhere. A wrong bias has
rank 1; without the mean over the rows it leaves nothing.
"""

import numpy as np

from conformance.faults.altered import Altered
from conformance.faults.fault import with_parameters
from conformance.faults.fitted.fitted_fault import LEAST_ROWS, Fit, FitData, Fitted, takes_seconds
from conformance.faults.kinds import LINEARS
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array
from conformance.oracle import Step
from conformance.oracle.linear import Linear


def _low_rank(step: Step, data: FitData) -> Fit | None:
    """Return the layer with its weight changed by a matrix of the rank of the residual; None if that is not low.

    The rank is low if each of the fitted numbers, r (N + O − r), has at least three elements of the residual, and if more than 2 r
    rows and outputs have a residual: r of them have the rank r whatever they are.
    """
    assert isinstance(step, Linear)
    kept = data.judged.any(-1).reshape(-1)
    arrays = (step.inputs, data.actual, step.value, data.allowed)
    x, found, right, allowed = (a.reshape(-1, a.shape[-1])[kept] for a in arrays)
    if not (takes_seconds(found) and takes_seconds(x)) or not np.isfinite(found).all():
        return None
    residual = found - right
    left, values, directions = np.linalg.svd(_explained_by_weight(x, residual), full_matrices=False)
    known = min(len(x), x.shape[1])  # the largest rank of the projection
    noise = _largest_of_noise(allowed, data.threshold)
    rank = _rank(values[:known], (known, found.shape[1]), noise)
    varying = np.linalg.svd(residual - residual.mean(0), compute_uv=False)
    moved = np.abs(residual) > data.largest * allowed
    if (
        not rank
        or varying[0] <= noise
        or not _ends(values, as_array(np.linalg.svd(x, compute_uv=False), np.float64), rank, noise)
        or LEAST_ROWS * rank * (known + found.shape[1] - rank) > known * found.shape[1]
        or min(int(moved.any(1).sum()), int(moved.any(0).sum())) <= 2 * rank
    ):
        return None
    weight = step.site.parameters["weight"]
    change = np.linalg.lstsq(x, left[:, :rank] * values[:rank], rcond=None)[0]  # (I, r)
    merged = weight + (change @ directions[:rank]).T

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        assert isinstance(altered.inner, Linear)
        return as_array(altered.inner.inputs**2 @ arithmetic.storage.rounding_variance(weight).T)

    fitted = Altered(with_parameters(step, weight=merged), lambda inner: inner.value, slack)
    return Fit(fitted, rank * (known + found.shape[1] - rank), "rank", float(rank))


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


def _ends(values: Array, of_inputs: Array, rank: int, noise: float) -> bool:
    """Return whether the singular values after the first `rank` are below those of a change of full rank of the same size."""
    if rank >= min(len(values), len(of_inputs)):
        return False
    size = float(np.sqrt((values[:rank] ** 2).sum() / np.maximum((of_inputs[:rank] ** 2).sum(), np.finfo(np.float64).tiny)))
    return bool(values[rank] + noise < size * of_inputs[rank])


LOW_RANK = (
    Fitted("adapter", LINEARS, "the result is off by a matrix of rank {value}, as by an adapter (LoRA)", "constructed",
           _low_rank, "an adapter that is merged into the weight, merged twice, or left active",
           equation="y = x (W + s B A)ᵀ + b, B of r columns and A of r rows",
           fix="Load the weight without the adapter, or merge the adapter once."),
)  # fmt: skip
