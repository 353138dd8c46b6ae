"""The base class of steps: an equation, its Jacobian and its rounding errors, at one place in a network."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single, as_array
from conformance.numerics.memo import cached_property
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.linear_maps import LinearMap, Roundings, Source, identity, nothing
from conformance.oracle.trace import Trace, Traced


@dataclass(frozen=True)
class Site:
    """The place of a step in a network.

    Attributes:
        activation: the step's row of the table of activations.
        architecture: the architecture of the network.
        parameters: the step's parameters by role.
        batch: the batch that the network is evaluated on.
        kept: for a dropout and for the gradient of a dropout, the mask: 1 where an element is kept, else 0; None for other steps.
    """

    activation: Activation
    architecture: Architecture
    parameters: Mapping[str, Array]
    batch: Batch
    kept: Array | None = None


EQUATIONS: dict[str, "type[Step]"] = {}
"""The step class of each kind of activation."""


class Step(ABC):
    """An equation evaluated on given parents. A subclass defines it in `value` and names the kinds of activations that it gives.

    Attributes:
        site: the place of the step in the network.
        parents: the activations from which the step is computed.
        couples_positions: whether an element of the result is computed from several positions of the parents.
    """

    couples_positions: ClassVar[bool] = False

    def __init_subclass__(cls, kinds: tuple[str, ...] = (), **more: Any) -> None:
        """Register the class as the equation of some kinds of activations; raise `TypeError` if one of them has an equation."""
        super().__init_subclass__(**more)
        if both := EQUATIONS.keys() & kinds:
            raise TypeError(f"{cls.__name__}: {', '.join(sorted(both))} have an equation")
        EQUATIONS.update(dict.fromkeys(kinds, cls))

    def __init__(self, site: Site, *parents: Array) -> None:
        """Initialize the step at a site of the network, with its parents."""
        self.site = site
        self.parents = parents

    def replaced(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> "Step":
        """Return the same equation at another site or with other parents; None leaves the site or the parents unchanged."""
        return type(self)(site or self.site, *(self.parents if parents is None else parents))

    def recast(self, equation: "type[Step]") -> "Step":
        """Return another equation at the same site and with the same parents."""
        return equation(self.site, *self.parents)

    @property
    @abstractmethod
    def value(self) -> Array:
        """The result, in float64."""

    def effect_of(self, *errors: Array | Single) -> Array | Single:
        """Return the effect of errors e of the parents x on the value f(x): f(x) − f(x − e), which is exact for errors of any size.

        Args:
            errors: one array per parent, of the parent's shape.
        """
        return self.value - self.replaced(parents=tuple(p - e for p, e in zip(self.parents, errors, strict=True))).value

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the Jacobian for each parent, in the order of the parents."""
        return tuple(identity() for _ in self.parents)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result that are due to errors of one parent.

        If the Jacobian is not diagonal, this implementation treats the parent's elements as independent. Steps that sum correlated
        errors, or that correlate independent ones, override it.
        """
        if not errors.any:
            return errors
        jacobian = self.jacobians()[parent]
        return errors.scaled(jacobian.slope) if jacobian.slope is not None else CorrelatedErrors(jacobian.variance(errors.variance))

    def stored(self, arithmetic: Arithmetic, error: Array | float = 0.0) -> Array:
        """Return the result plus an error as it is stored if nothing rounds but library calls, each of which rounds its result."""
        return arithmetic.storage.round(self.value + error)

    @abstractmethod
    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the effect of the step's own rounding errors on its result under `arithmetic`."""

    def least_roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return a lower bound of `roundings` that is quicker to compute: of the variance of every element, and of the bound."""
        return self.roundings(arithmetic)


class ProgramStep(Step):
    """A step whose equation is a program (`oracle.program`) of its parents; Jacobians and rounding errors follow from its trace.

    Attributes:
        fused: name in the tables of error bounds of the function that a kernel computes in place of the program, if there is one.
        followed: whether candidates that write the program as elementary operations are followed (`oracle.operations`).
    """

    fused: ClassVar[str] = ""
    followed: ClassVar[bool] = False

    @abstractmethod
    def program(self, *parents: Any) -> Any:
        """Return the result."""

    @cached_property
    def _operands(self) -> tuple[Traced, ...]:
        return tuple(map(Traced, self.parents))

    @cached_property
    def trace(self) -> Trace:
        """The trace of the program, with every parent as an operand."""
        result = copy(self).program(*self._operands)  # The trace has the program's forms, which refer to their step: no cycle.
        assert isinstance(result, Traced)
        return Trace(result)

    @cached_property
    def value(self) -> Array:
        """The result, in float64."""
        return as_array(self.program(*self.parents))

    def jacobians(self) -> tuple[LinearMap, ...]:
        """Return the effects of errors of the parents on the result."""
        trace = self.trace
        return tuple(trace.effect(x).map if trace.reaches(x) else nothing(self.value, x.value) for x in self._operands)

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the errors of the program's operations, and of the rounding to storage."""
        own, others = self.trace.sources(arithmetic)
        own = np.maximum(np.zeros_like(self.value) + own + self.stored_variance(arithmetic), self.floor_variance(arithmetic))
        return Roundings((Source(as_array(own), identity()), *others), self.trace.bound(arithmetic, self.fused))

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return the variance of rounding the result to storage."""
        return arithmetic.storage_rounding_variance(self.value)

    def floor_variance(self, arithmetic: Arithmetic) -> float:
        """Return the least variance of an element."""
        return arithmetic.storage.floor_variance


def elementwise_roundings(variance: Array, bound: Array | float = 0.0) -> Roundings:
    """Return roundings with independent errors of the result's elements, of this variance, and with this deterministic bound."""
    return Roundings((Source(variance, identity()),), bound)
