"""Verification of a matrix product by projections of its residual, at a fraction of the cost of computing it again.

For Y = X Wᵀ + b with the residual E = Y − X Wᵀ − b of the candidate, signs ρ and each block B of g features,

    p_iB = Σ_{j∈B} ρ_j e_ij = Σ_{j∈B} ρ_j (y_ij − b_j) − Σ_k x_ik C_kB,     C_kB = Σ_{j∈B} ρ_j w_jk

costs N·I·O/g products in place of N·I·O, and C is computed once for a checkpoint if W is a weight (Freivalds 1977, *Probabilistic
machines can use less running time*; with rounding errors: Ji, Mascagni and Li 2017). With random signs, E p² = Σ ρ² e² whatever the
errors are. |ρ_j| is a power of two near 1/‖w_j‖, so that the errors of all features of a block weigh about alike; such a scaling is
exact.

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
from typing import NamedTuple

import numpy as np

from conformance.judge.depth import FEATURES, OPENED
from conformance.judge.observation import Observation
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Captured, Single
from conformance.numerics.memo import once_an_array
from conformance.numerics.thresholds import max_threshold, rms_threshold
from conformance.oracle.equations import EQUATIONS
from conformance.oracle.gradients.products import LinearBackward, LinearGradient
from conformance.oracle.linear import Linear

ROWS = 64  # number of rows whose arrays, in float64, stay in a processor's cache


@dataclass(frozen=True)
class ProjectedFactor:
    """The factor W (O, I) of a product X Wᵀ, projected on blocks of features.

    Attributes:
        signs: ρ, (O,).
        product: C, (I, O/g).
        squares: Σ_{j∈B} ρ_j² w_jk², (I, O/g).
    """

    signs: Array
    product: Array
    squares: Single


def _projected(factor: Array) -> ProjectedFactor | None:
    """Return a projected factor; None if it has no blocks of `FEATURES` rows, or a row of zeros, which no power of two scales."""
    outputs, inputs = factor.shape
    norms = np.sqrt(np.square(factor).sum(1))
    if outputs % FEATURES or not (norms > 0.0).all():
        return None
    signs = np.random.default_rng(outputs * inputs).choice((-1.0, 1.0), outputs) * np.exp2(-np.rint(np.log2(norms)))
    scaled = (factor * signs[:, None]).reshape(-1, FEATURES, inputs)
    return ProjectedFactor(signs, scaled.sum(1).T.copy(), np.square(scaled).sum(1).T.astype(np.float32))


def _transposed(weight: Array) -> ProjectedFactor | None:
    return _projected(weight.T)


_of_weight, _of_transposed = once_an_array(_projected), once_an_array(_transposed)


class ObservedProduct(NamedTuple):
    """A product Y = X Wᵀ + b as a candidate computed it: X (N, I) and Y (N, O), the projected W, and b (O,)."""

    left: Captured
    result: Captured
    factor: ProjectedFactor
    bias: Array | float = 0.0


def product_of(observation: Observation) -> ObservedProduct | None:
    """Return the product that an activation is if it is a linear layer, or a gradient of one, in a single step; else None.

    These are Y = X Wᵀ + b, ∂L/∂X = w W and ∂L/∂W = wᵀ X, with w = ∂L/∂Y.
    """
    equation, captured = EQUATIONS[observation.activation.kind], observation.captured
    if len(observation.steps) > 1 or equation not in (Linear, LinearBackward, LinearGradient):
        return None
    left, *others = (captured[parent].reshape(-1, captured[parent].shape[-1]) for parent in observation.activation.parents)
    parameters = observation.network.site(observation.name).parameters
    bias: Array | float = 0.0
    if equation is Linear:
        factor, bias = _of_weight(parameters["weight"]), parameters.get("bias", 0.0)
    elif equation is LinearBackward:
        factor = _of_transposed(parameters["weight"])
    else:
        left, factor = left.T, _projected(others[0].astype(np.float64).T)
    result = observation.actual.reshape(-1, observation.actual.shape[-1])
    return None if factor is None else ObservedProduct(left, result, factor, bias)


def is_verified(product: ObservedProduct, arithmetic: Arithmetic) -> bool:
    """Return whether the projections of a product's residual are within what a correct candidate makes.

    Args:
        product: the product.
        arithmetic: the arithmetic model.
    """
    with np.errstate(all="ignore"):
        projected = np.concatenate(list(_in_sigma(product, arithmetic)))
        rms, largest = float(np.sqrt(np.mean(np.square(projected)))), float(np.abs(projected).max())
    return rms <= rms_threshold(len(projected), OPENED) and largest <= max_threshold(projected.size, OPENED)  # NaN is not within


def _in_sigma(product: ObservedProduct, arithmetic: Arithmetic) -> Iterator[Array]:
    """Yield the projections (n, O/g) of blocks of rows, in deviations; NaN where a deviation is not finite."""
    factor, inputs = product.factor, product.left.shape[1]
    floor = arithmetic.storage.floor_variance * np.square(factor.signs).reshape(-1, FEATURES).sum(-1)
    for start in range(0, len(product.left), ROWS):
        left, result = (a[start : start + ROWS].astype(np.float64) for a in (product.left, product.result))
        stored = arithmetic.storage_rounding_variance(result)
        result -= product.bias
        result *= factor.signs
        blocks = result.reshape(len(result), -1, FEATURES)
        terms = np.square(left).astype(np.float32) @ factor.squares
        squares = np.einsum("nbg,nbg->nb", blocks, blocks)
        variance = arithmetic.accumulate.unit_roundoff**2 / 3.0 * inputs * (squares / 3.0 + terms / 6.0)
        if isinstance(stored, np.ndarray):
            variance += (stored * np.square(factor.signs)).reshape(blocks.shape).sum(-1)
        np.maximum(variance, floor, out=variance)
        projected = blocks.sum(-1)
        projected -= left @ factor.product
        yield np.where(np.isfinite(variance), projected / np.sqrt(variance), np.nan)
