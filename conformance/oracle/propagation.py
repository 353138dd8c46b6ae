"""How errors add up along steps: variances, first order, cross-correlations of a step's parents left out.

Elements of one activation are taken to be independent, too, but where a later step would sum many that are not: one error that a
whole row has, and errors that positions have in common, since each is a mixture of the same (`Mixture`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from conformance.model.activation import Activation
from conformance.numerics.formats import Array
from conformance.oracle.maps import LinearMap, Mixture, Roundings
from conformance.oracle.step import Step


@dataclass(frozen=True)
class _Errors:
    """Of one activation: variance of independent errors; one error a row, as what a deviation of it moves; and mixtures."""

    independent: Array | float = 0.0
    shared: tuple[Array, ...] = ()
    mixtures: tuple[Mixture, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(np.ndim(self.variance) or self.variance)

    @property
    def variance(self) -> Array:
        """Elementwise, all together."""
        each = (*map(np.square, self.shared), *(mixture.of_positions for mixture in self.mixtures))
        return sum(each, start=np.asarray(self.independent))

    def __add__(self, other: "_Errors") -> "_Errors":
        """Those of two, which know nothing of each other."""
        independent = self.independent + other.independent
        return _Errors(independent, self.shared + other.shared, self.mixtures + other.mixtures)


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
    errors, last = {name: _Errors(variance) for name, variance in leaves.items()}, list(steps)[-1]
    if own is not None and len(steps) == 1 and not leaves:
        return np.broadcast_to(own(last).variance(), steps[last].value.shape)
    for name, step in steps.items():
        parents = table[name].parents
        arriving = [i for i, parent in enumerate(parents) if parent in errors]
        jacobians = step.jacobians() if arriving else ()
        found = sum((_through(step, i, jacobians[i], errors[parents[i]]) for i in arriving), start=_Errors())
        if own is not None:
            found = found + _made(own(name)) + _Errors(0.0 if name == last else np.square(own(name).bound))
        if found.any:
            errors[name] = found
    return np.broadcast_to(errors.get(last, _Errors()).variance, steps[last].value.shape)


def _made(roundings: Roundings) -> _Errors:
    """A step's own errors."""
    shared = tuple(np.sqrt(s.variance) * s.direction for s in roundings.sources if s.direction is not None)
    others = (s.to_result.variance(s.variance) for s in roundings.sources if s.direction is None)
    return _Errors(sum(others, start=np.zeros(())), shared)


def _through(step: Step, parent: int, jacobian: LinearMap, errors: _Errors) -> _Errors:
    """What the errors of one parent do to a step's result; where the step does not sum what errors have in common, elementwise."""
    arriving, independent, mixtures = np.asarray(errors.independent), np.zeros(()), list[Mixture]()
    for moved in errors.shared:
        found = step.of_shared(moved) if parent == 0 else None
        if found is None:
            arriving = arriving + np.square(moved)
        elif isinstance(found, Mixture):
            mixtures.append(found)
        else:
            independent = independent + found
    for mixture in errors.mixtures:
        summed = step.of_mixture(parent, mixture)
        if summed is None:
            arriving = arriving + mixture.of_positions
        else:
            independent = independent + summed
    if (weights := step.mixing(parent)) is not None:
        mixtures.append(Mixture(weights, np.broadcast_to(arriving, step.parents[parent].shape)))
    elif np.ndim(arriving) or arriving:
        independent = independent + jacobian.variance(arriving)
    return _Errors(independent, mixtures=tuple(mixtures))
