"""How errors add up along steps: elementwise variance, first order, cross-correlations of a step's parents left out.

Elements of one activation are taken to be independent, too, but for one error a row that the next step sums over.
"""

from collections import Counter
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
    uses = Counter(parent for name in steps for parent in table[name].parents)
    shared: dict[str, list[Array]] = {}  # one error a row, as what a standard deviation of it moves
    for name, step in steps.items():
        total, parents = np.zeros(()), table[name].parents
        arriving = [i for i, parent in enumerate(parents) if parent in variances]
        jacobians = step.jacobians() if arriving else ()
        for i in arriving:
            total = total + jacobians[i].variance(variances[parents[i]])
        for moved in shared.get(parents[0], ()) if parents else ():
            total = total + np.square(step.again(parents=(moved, *step.parents[1:])).value)
        if own is not None:
            roundings = own(name)
            kept = [s for s in roundings.sources if s.direction is not None] if _is_summed(name, table, steps, uses) else []
            shared[name] = [np.sqrt(s.variance) * s.direction for s in kept]
            others = (s.to_result.variance(s.variance) for s in roundings.sources if s.direction is None or not kept)
            total = total + sum(others, start=np.zeros(())) + (0.0 if name == last else np.square(roundings.bound))
        if np.ndim(total) or total:
            variances[name] = total
    return np.broadcast_to(variances.get(last, np.zeros(())), steps[last].value.shape)


def _is_summed(name: str, table: Mapping[str, Activation], steps: Mapping[str, Step], uses: Mapping[str, int]) -> bool:
    """Whether its only use sums over its rows, so that an error that all of a row has does not average out there."""
    readers = [step for n, step in steps.items() if name in table[n].parents[:1]]
    return uses.get(name) == 1 and len(readers) == 1 and readers[0].sums_rows
