"""What rounding adds up to since the token ids, elementwise: the global counterpart of a segment's sigma, without sampling."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformance.judge.statistics import SEPARABLE_Z
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Network


@dataclass(frozen=True)
class Accumulated:
    """Elementwise variance of what one correct run may have accumulated, and its last step's largest deterministic error."""

    variance: Array
    bound: Array | float


def _across_the_kink(x: Array, variance: Array) -> Array:
    """What passes max(x, 0): all of it where x may be on the other side than it is, which the slope at x alone does not know.

    That is within as many deviations of 0 as no error of a run goes beyond.
    """
    return np.asarray(np.where(x > -SEPARABLE_Z * np.sqrt(variance), variance, 0.0))


def accumulated(network: Network, arithmetic: Arithmetic) -> Mapping[str, Accumulated]:
    """Of every activation: var(y) = Σ_parents J² var(parent) + the step's own roundings, from the token ids on.

    First order, as in a segment: cross-correlations of a step's parents are left out, and the deterministic bound b of an earlier
    step enters as a variance b², since later weights have signs that know nothing of its own.
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
