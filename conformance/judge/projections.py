"""Verification of a linear layer by projections of its residual, at a fraction of the cost of computing its result again.

For Y = X Wᵀ + b with the residual E = Y − X Wᵀ − b of the candidate, signs ρ and each block B of g features,

    p_iB = Σ_{j∈B} ρ_j e_ij = Σ_{j∈B} ρ_j (y_ij − b_j) − Σ_k x_ik C_kB,     C_kB = Σ_{j∈B} ρ_j w_jk

costs N·I·O/g products in place of N·I·O, and C is computed once for a checkpoint (Freivalds 1977, *Probabilistic machines can use
less running time*; with rounding errors: Ji, Mascagni and Li 2017). With random signs, E p² = Σ ρ² e² whatever the errors are.
|ρ_j| is a power of two near 1/‖w_j‖, so that the errors of all features of a block weigh about alike; such a scaling is exact.

The errors of a correct candidate are independent between features, with the variance that `oracle.accumulation` derives: that of
the order of summation whose errors are largest. A random order is one of them, and its variance alone projects exactly. With K
inputs,

    Var p ≥ u²/3 · Σ_j ρ_j² (K (y_ij − b_j)²/3 + K T_ij/6) + Σ_j ρ_j² · (rounding of y_ij to storage),   T_ij = Σ_k x_ik² w_jk²

The projections in units of this deviation are therefore no smaller than in units of the exact one, and neither is their root mean
square. They are a gate: an activation is only ever failed by the exact test, which is made of all of it where the gate opens.

A gate that opens for no reason costs time alone, so its false-alarm probability is not that of a verdict: it is `OPENED`. A single
wrong element of s deviations, in the root mean square of its block, adds s/√g to its projection: see `visible_element`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.judge.depth import FEATURES, OPENED
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Hypothesis
from conformance.numerics.formats import Array, Single
from conformance.numerics.memo import once_an_array
from conformance.numerics.thresholds import max_threshold, rms_threshold

ROWS = 64  # number of rows whose arrays, in float64, stay in a processor's cache


@dataclass(frozen=True)
class ProjectedWeight:
    """A weight W (O, I) projected on blocks of features.

    Attributes:
        signs: ρ, (O,).
        product: C, (I, O/g).
        squares: Σ_{j∈B} ρ_j² w_jk², (I, O/g).
    """

    signs: Array
    product: Array
    squares: Single


def _projected(weight: Array) -> ProjectedWeight | None:
    """Return a projected weight; None if it has no blocks of `FEATURES` rows, or a row of zeros, which no power of two scales."""
    outputs, inputs = weight.shape
    norms = np.sqrt(np.square(weight).sum(1))
    if outputs % FEATURES or not (norms > 0.0).all():
        return None
    signs = np.random.default_rng(outputs * inputs).choice((-1.0, 1.0), outputs) * np.exp2(-np.rint(np.log2(norms)))
    scaled = (weight * signs[:, None]).reshape(-1, FEATURES, inputs)
    return ProjectedWeight(signs, scaled.sum(1).T.copy(), np.square(scaled).sum(1).T.astype(np.float32))


_of_weight = once_an_array(_projected)


def is_verified(observation: Observation, hypothesis: Hypothesis) -> bool:
    """Return whether the projections of a linear layer's residual are within what a correct candidate makes.

    Args:
        observation: a single linear layer at N tokens, (N, 1, O).
        hypothesis: the hypothesis with the tightest arithmetic.
    """
    parameters = observation.network.site(observation.name).parameters
    weight = _of_weight(parameters["weight"])
    if weight is None:
        return False
    bias = parameters.get("bias", np.zeros(len(weight.signs)))
    with np.errstate(all="ignore"):
        found = np.concatenate(list(_in_sigma(observation, hypothesis, weight, bias)))
        rms, largest = float(np.sqrt(np.mean(np.square(found)))), float(np.abs(found).max())
    return rms <= rms_threshold(len(found), OPENED) and largest <= max_threshold(found.size, OPENED)  # NaN is not within


def _in_sigma(observation: Observation, hypothesis: Hypothesis, weight: ProjectedWeight, bias: Array) -> Iterator[Array]:
    """Yield the projections (n, O/g) of blocks of rows, in deviations; NaN where a deviation is not finite."""
    (parent,) = observation.activation.parents
    x, y = observation.captured[parent][:, 0], np.asarray(observation.actual)[:, 0]
    arithmetic, inputs = hypothesis.arithmetic, x.shape[1]
    for start in range(0, len(x), ROWS):
        left, result = (a[start : start + ROWS].astype(np.float64) for a in (x, y))
        stored = arithmetic.storage_rounding_variance(result)
        result -= bias
        result *= weight.signs
        blocks = result.reshape(len(result), -1, FEATURES)
        terms = np.square(left).astype(np.float32) @ weight.squares
        squares = np.einsum("nbg,nbg->nb", blocks, blocks)
        variance = arithmetic.accumulate.unit_roundoff**2 / 3.0 * inputs * (squares / 3.0 + terms / 6.0)
        if isinstance(stored, np.ndarray):
            variance += (stored * np.square(weight.signs)).reshape(blocks.shape).sum(-1)
        projected = blocks.sum(-1)
        projected -= left @ weight.product
        yield np.where(np.isfinite(variance), projected / np.sqrt(variance), np.nan)
