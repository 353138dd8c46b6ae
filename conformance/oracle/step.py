"""One step of the network: an equation, its Jacobian and its roundings, at one place of one network."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from conformance.model.activation import Activation
from conformance.model.architecture import Architecture
from conformance.model.batch import Batch
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array, Single
from conformance.oracle.carried import Errors
from conformance.oracle.maps import LinearMap, Roundings, Source, identity


@dataclass(frozen=True)
class Site:
    """Where a step stands: its row of the table, the network's architecture, its parameters by role, and the batch.

    Attributes:
        kept: the mask of the dropout that it is, or goes back through, 1 or 0; None of other steps.
    """

    activation: Activation
    architecture: Architecture
    parameters: Mapping[str, Array]
    batch: Batch
    kept: Array | None = None


class Step(ABC):
    """An equation evaluated on given parents. Subclasses write the equation once, in `value`.

    Attributes:
        couples_positions: whether an element is computed from several positions of its parents.
    """

    couples_positions: ClassVar[bool] = False

    def __init__(self, site: Site, *parents: Array) -> None:
        """Bind the equation to a place and to its parents."""
        self.site = site
        self.parents = parents

    def again(self, *, site: Site | None = None, parents: tuple[Array, ...] | None = None) -> "Step":
        """The same equation at another site, or of other parents."""
        return type(self)(site or self.site, *(self.parents if parents is None else parents))

    def recast(self, equation: "type[Step]") -> "Step":
        """Another equation of the same parents."""
        return equation(self.site, *self.parents)

    @property
    @abstractmethod
    def value(self) -> Array:
        """The result, float64."""

    def moved_by(self, *errors: Array | Single) -> Array | Single:
        """How much of the value is due to errors of the parents: f(x) − f(x − e), however large they are."""
        return self.value - self.again(parents=tuple(p - e for p, e in zip(self.parents, errors, strict=True))).value

    def jacobians(self) -> tuple[LinearMap, ...]:
        """One map a parent, in the order of the parents."""
        return tuple(identity() for _ in self.parents)

    def through(self, parent: int, errors: Errors) -> Errors:
        """What errors of a parent do to the result; a step that sums what they have in common, or makes it, says so itself."""
        return Errors(self.jacobians()[parent].variance(errors.variance)) if errors.any else errors

    @abstractmethod
    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """What rounding does to the result under `arithmetic`."""


def elementwise(variance: Array, bound: Array | float = 0.0) -> Roundings:
    """Independent errors of the result's own elements."""
    return Roundings((Source(variance, identity()),), bound)
