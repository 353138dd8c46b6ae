"""How errors add up along steps: variances, first order, cross-correlations of a step's parents left out.

Elements of one activation are taken to be independent, too, but for what `carried.Errors` keeps apart.
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
    own: Callable[[str], Roundings] | None,
) -> Array:
    """Variance of the last step's result, for leaves of these variances and, given `own`, every step's roundings.

    A hidden step's deterministic bound b enters as a variance b²: its error has a sign that is fixed, but the weights that
    later steps sum it with have signs that know nothing of it, so that it adds up as random terms of that size do.
    """
    errors, last = {name: Errors(variance) for name, variance in leaves.items()}, list(steps)[-1]
    if own is not None and len(steps) == 1 and not leaves:
        return np.broadcast_to(own(last).variance(), steps[last].value.shape)
    for name, step in steps.items():
        parents = enumerate(table[name].parents)
        found = sum((step.through(i, errors[parent]) for i, parent in parents if parent in errors), start=Errors())
        if own is not None:
            found = found + _made(own(name)) + Errors(0.0 if name == last else np.square(own(name).bound))
        errors[name] = found
    return np.broadcast_to(errors[last].variance, steps[last].value.shape)


def _made(roundings: Roundings) -> Errors:
    """A step's own errors."""
    shared = tuple(np.sqrt(s.variance) * s.direction for s in roundings.sources if s.direction is not None)
    others = (s.to_result.variance(s.variance) for s in roundings.sources if s.direction is None)
    return Errors(sum(others, start=np.zeros(())), shared)
