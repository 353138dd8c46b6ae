"""Propagation of error variances through a sequence of steps, to first order.

Errors of different parents of a step are treated as uncorrelated. Errors of different elements of one activation are treated as
independent, except for the shared errors and mixtures that `correlated_errors.CorrelatedErrors` represents.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from conformance.model.activation import Activation
from conformance.numerics.formats import Array
from conformance.oracle.correlated_errors import CorrelatedErrors, RowError
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.step import Step


def propagated(
    table: Mapping[str, Activation],
    steps: Mapping[str, Step],
    leaves: Mapping[str, Array],
    own: Callable[[str], Roundings],
) -> Array:
    """Return the elementwise variance of the result of the last step.

    The deterministic bound b of an unexposed step (any step but the last) enters as a variance b². The error has a fixed sign,
    but the weights with which later steps sum it have signs that are unrelated to it, so it accumulates like random terms of that
    size.

    Args:
        table: rows of the activations, by name.
        steps: the steps by name, in the order of computation.
        leaves: elementwise variances of the errors of the activations that the steps start from, by name.
        own: function from the name of a step to its own rounding errors.
    """
    name, last = list(steps.items())[-1]
    if len(steps) == 1 and not leaves:
        return np.broadcast_to(own(name).variance(), last.value.shape)
    known = {name: CorrelatedErrors(variance) for name, variance in leaves.items()}
    *_, (errors, _) = accumulated_errors(table, steps.items(), known, lambda name, _: own(name))
    return np.broadcast_to(errors.variance, last.value.shape)


def accumulated_errors(
    table: Mapping[str, Activation],
    steps: Iterable[tuple[str, Step]],
    known: Mapping[str, CorrelatedErrors],
    own: Callable[[str, Step], Roundings],
) -> Iterator[tuple[CorrelatedErrors, Array | float]]:
    """Yield the errors of the result of each step, and the deterministic bound of its own error, which they do not include.

    Args:
        table: rows of the activations, by name.
        steps: names and steps, in the order of computation.
        known: errors of the activations that the steps start from, by name; any other such activation has none.
        own: function from a step and its name to its own rounding errors.
    """
    errors = dict(known)
    for name, step in steps:
        made = own(name, step)
        found = errors_after(step, [errors.get(parent) for parent in table[name].parents], made)
        yield found, made.bound
        errors[name] = found + CorrelatedErrors(np.square(made.bound))


def errors_after(step: Step, parents: Iterable[CorrelatedErrors | None], own: Roundings) -> CorrelatedErrors:
    """Return the errors of a step's result, without the deterministic bound of its own error.

    Args:
        step: the step.
        parents: errors of its parents, in order; None for a parent without errors.
        own: the step's own rounding errors.
    """
    arriving = (step.through(i, errors) for i, errors in enumerate(parents) if errors is not None)
    return sum(arriving, start=CorrelatedErrors()) + _made(own)


def _made(roundings: Roundings) -> CorrelatedErrors:
    """Return a step's own rounding errors, with those that a row shares kept separate."""
    shared = tuple(RowError(np.sqrt(s.variance) * s.direction) for s in roundings.sources if s.direction is not None)
    others = (s.to_result.variance(s.variance) for s in roundings.sources if s.direction is None)
    return CorrelatedErrors(sum(others, start=np.zeros(())), shared)
