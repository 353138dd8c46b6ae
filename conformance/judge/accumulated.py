"""Elementwise variance of the rounding errors accumulated since the token ids, propagated analytically rather than sampled."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformance.judge.statistics import SEPARABLE_Z
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Network


@dataclass(frozen=True)
class Accumulated:
    """Elementwise variance of the rounding errors accumulated by one correct run, and the last step's deterministic bound.

    Attributes:
        variance: variance of the accumulated error of each element.
        bound: largest deterministic error of the activation's own step; broadcasts to `variance`.
    """

    variance: Array
    bound: Array | float


def _across_the_kink(x: Array, variance: Array) -> Array:
    """Return the variance that max(x, 0) passes on: all of it for x above −SEPARABLE_Z standard deviations, else 0.

    The slope at x alone does not account for a rounding error that moves x across 0. No rounding error of a run is larger than
    SEPARABLE_Z standard deviations.
    """
    return np.asarray(np.where(x > -SEPARABLE_Z * np.sqrt(variance), variance, 0.0))


def accumulated(network: Network, arithmetic: Arithmetic) -> Mapping[str, Accumulated]:
    """Return the accumulated error of every activation: var(y) = Σ_parents J² var(parent) + the step's own roundings.

    The recursion starts at the token ids. It is first order, as in a segment: covariances between a step's parents are ignored.
    The deterministic bound b of an earlier step enters as a variance b², because the signs of later weights are independent of
    that error.
    """
    values: dict[str, Array] = {}
    carried: dict[str, Array] = {}
    found = {}
    for name, row in network.table.items():
        step = network.step(name, *(values[p] for p in row.parents))
        values[name], total, bound = step.value, np.zeros(()), np.zeros(())
        for parent, jacobian in zip(row.parents, step.jacobians(), strict=True):
            arriving = np.broadcast_to(carried[parent], values[parent].shape)
            if row.kind == "relu":
                total = total + _across_the_kink(values[parent], arriving)
            else:
                total = total + jacobian.variance(arriving)
        if not row.exact:
            roundings = step.roundings(arithmetic)
            total, bound = total + roundings.variance(), np.asarray(roundings.bound)
        found[name] = Accumulated(np.broadcast_to(total, step.value.shape), bound)
        carried[name] = total + np.square(bound)
    return found
