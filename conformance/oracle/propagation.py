"""How errors add up along steps: elementwise variance, first order, cross-correlations of a step's parents left out."""

from collections.abc import Callable, Mapping

import numpy as np

from conformance.model.activation import Activation
from conformance.numerics.formats import Array
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
    variances, last = dict(leaves), list(steps)[-1]
    if own is not None and len(steps) == 1 and not leaves:
        return np.broadcast_to(own(last).variance(), steps[last].value.shape)
    for name, step in steps.items():
        total, parents = np.zeros(()), table[name].parents
        arriving = [i for i, parent in enumerate(parents) if parent in variances]
        jacobians = step.jacobians() if arriving else ()
        for i in arriving:
            total = total + jacobians[i].variance(variances[parents[i]])
        if own is not None:
            roundings = own(name)
            total = total + roundings.variance() + (0.0 if name == last else np.square(roundings.bound))
        if np.ndim(total) or total:
            variances[name] = total
    return np.broadcast_to(variances.get(last, np.zeros(())), steps[last].value.shape)
