"""Propagation of error variances through a sequence of steps, to first order.

Errors of different parents of a step are treated as uncorrelated. Errors of different elements of one activation are treated as
independent, except for the shared errors and mixtures that `carried.Errors` represents.
"""

from collections.abc import Callable, Mapping

import numpy as np

from conformance.model.activation import Activation
from conformance.numerics.formats import Array
from conformance.oracle.carried import Errors
from conformance.oracle.maps import Roundings
from conformance.oracle.step import Step


def propagated(
    table: Mapping[str, Activation],
    steps: Mapping[str, Step],
    leaves: Mapping[str, Array],
    own: Callable[[str], Roundings],
) -> Array:
    """Return the elementwise variance of the result of the last step.

    The deterministic bound b of a hidden step (any step but the last) enters as a variance b². The error has a fixed sign, but the
    weights with which later steps sum it have signs that are unrelated to it, so it accumulates like random terms of that size.

    Args:
        table: rows of the activations, by name.
        steps: the steps by name, in the order of computation.
        leaves: elementwise variances of the errors of the activations that the steps start from, by name.
        own: function from the name of a step to its own rounding errors.
    """
    errors, last = {name: Errors(variance) for name, variance in leaves.items()}, list(steps)[-1]
    if len(steps) == 1 and not leaves:
        return np.broadcast_to(own(last).variance(), steps[last].value.shape)
    for name, step in steps.items():
        parents = enumerate(table[name].parents)
        found = sum((step.through(i, errors[parent]) for i, parent in parents if parent in errors), start=Errors())
        errors[name] = found + _made(own(name)) + Errors(0.0 if name == last else np.square(own(name).bound))
    return np.broadcast_to(errors[last].variance, steps[last].value.shape)


def _made(roundings: Roundings) -> Errors:
    """Return a step's own rounding errors, with those that a row shares kept separate."""
    shared = tuple(np.sqrt(s.variance) * s.direction for s in roundings.sources if s.direction is not None)
    others = (s.to_result.variance(s.variance) for s in roundings.sources if s.direction is None)
    return Errors(sum(others, start=np.zeros(())), shared)
