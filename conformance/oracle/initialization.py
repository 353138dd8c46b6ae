"""Parameters before training: some are known, and of others only what they are drawn from is."""

import numpy as np

from conformance.model.initialization import constant_of
from conformance.model.training import parameter_of
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.memo import cached_property
from conformance.oracle.embeddings import Exact
from conformance.oracle.maps import Roundings
from conformance.oracle.step import Step, elementwise


def _shape(step: Step) -> tuple[int, ...]:
    return step.site.activation.shape(0, 0, 0)


class InitialConstant(Exact):
    """0 for biases, 1 for weights of LayerNorms."""

    @cached_property
    def value(self) -> Array:
        """The constant."""
        return np.full(_shape(self), constant_of(parameter_of(self.site.activation.name)))


class InitialDraw(Step):
    """N(0, r²): 0, with r² for its variance."""

    @cached_property
    def value(self) -> Array:
        """The mean."""
        return np.zeros(_shape(self))

    def roundings(self, arithmetic: Arithmetic) -> Roundings:
        """The variance of the draw; truncation makes it smaller, and rounding adds less than u² of it."""
        return elementwise(np.full(_shape(self), self.site.architecture.initializer_range**2))
