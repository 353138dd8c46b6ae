"""Elementwise variance of the rounding errors accumulated since the token ids, propagated analytically rather than sampled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.faults import FaultContext
from conformance.judge.found_equations import FoundEquations
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.oracle import Network, Step
from conformance.oracle.propagation import accumulated_errors

CORRECT = FoundEquations()  # no mistake


@dataclass(frozen=True)
class Accumulated:
    """Elementwise variance of the rounding errors accumulated by one correct run, and the last step's deterministic bound.

    Attributes:
        variance: variance of the accumulated error of each element.
        bound: largest deterministic error of the activation's own step; broadcasts to `variance`.
    """

    variance: Array
    bound: Array | float


def accumulated(
    network: Network,
    arithmetic: Arithmetic,
    captured: Mapping[str, Array] = {},
    found: FoundEquations = CORRECT,
) -> Mapping[str, Accumulated]:
    """Return the accumulated error of every activation; the recursion starts at the token ids and is first order, as in a segment.

    Each step's Jacobian and rounding errors are those at the candidate's own inputs to it, as far as it exposes them. If its
    forward pass is wrong, they differ by any factor from those at a correct BERT's values. The deterministic bound b of an earlier
    step enters as a variance b², because the signs of later weights are independent of that error.

    Args:
        network: the oracle's network.
        arithmetic: the arithmetic model.
        captured: the candidate's exposed activations by name; others are computed from these.
        found: the mistakes with which the candidate computes its steps.
    """
    values: dict[str, Array] = {}

    def steps() -> Iterator[tuple[str, Step]]:
        for name, row in network.table.items():
            right = network.step(name, *(values[p] for p in row.parents))
            step = found.applied(name, right, FaultContext(network, values, arithmetic.storage))
            values[name] = captured.get(name, step.value)
            yield name, step

    errors = accumulated_errors(network.table, steps(), {}, lambda _, step: step.roundings(arithmetic))
    return {
        name: Accumulated(np.broadcast_to(made.variance, values[name].shape), bound)
        for name, (made, bound) in zip(network.table, errors, strict=True)
    }
