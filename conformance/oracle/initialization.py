"""Parameters before training: some are constants, others are drawn from a known distribution."""

import numpy as np

from conformance.model.training import constant_of, parameter_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Exact
from conformance.oracle.linear_maps import Roundings
from conformance.oracle.step import Step, elementwise_roundings


def _shape(step: Step) -> tuple[int, ...]:
    return step.site.activation.shape(0, 0, 0)


class InitialConstant(Exact):
    """A constant initial parameter: 0 for biases, 1 for LayerNorm weights."""

    @cached_property
    def value(self) -> Array:
        """The constant, in the shape of the parameter."""
        return np.full(_shape(self), constant_of(parameter_of(self.site.activation.name)))


class InitialDraw(Step):
    """A parameter drawn from N(0, r²): its expected value is 0 and its variance is r², with r the `initializer_range`."""

    @cached_property
    def value(self) -> Array:
        """The expected value, 0."""
        return np.zeros(_shape(self))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """Return the variance r² of the draw; truncation reduces it, and rounding adds less than a fraction u²."""
        return elementwise_roundings(np.full(_shape(self), self.site.architecture.initializer_range**2))
