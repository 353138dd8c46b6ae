"""Gradients of activation functions: f′(x) w, elementwise."""

from typing import Any

import numpy as np

from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import Array
from conformance.numerics.functions import TANH_CUBIC, TANH_OUTER
from conformance.numerics.thresholds import LARGEST_DEVIATION
from conformance.oracle.correlated_errors import CorrelatedErrors
from conformance.oracle.program import either, erf, selected, value_of
from conformance.oracle.step import ProgramStep

_DENSITY = (2.0 * np.pi) ** -0.5


class GeluBackward(ProgramStep, kinds=("gelu_backward",)):
    """The gradient of GELU, w f′(x) with f′(x) = Φ(x) + x φ(x)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient; the second form is that of the factors of GELU, differentiated one after the other."""
        w, x = parents
        t = x * 0.5**0.5
        share = (1.0 + erf(t)) * 0.5
        return either(
            x,
            lambda: w * (share + density(x)),
            lambda: w * share + w * (x * 0.5) * (np.exp(-(t * t)) * (2.0 * np.pi**-0.5)) * 0.5**0.5,
            lambda: w * share + w * density(x),
        )


def density(x: Array) -> Any:
    """Return x φ(x)."""
    return np.exp(x * x * -0.5) * _DENSITY * x


class GeluTanhBackward(ProgramStep, kinds=("gelu_new_backward", "gelu_pytorch_tanh_backward")):
    """The gradient of tanh-GELU, w f′(x) with f′(x) = (1 + t)/2 + x/2 · (1 − t²) h′, t = tanh(h), h = √(2/π) (x + 0.044715 x³)."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient; the second form is that of the factors of GELU, differentiated one after the other."""
        (w, x), c, k = parents, TANH_OUTER, TANH_CUBIC
        t = np.tanh(c * (x + k * (x * x * x)))
        share, left = (1.0 + t) * 0.5, 1.0 - t * t

        def differentiated() -> Any:
            inner = w * (x * 0.5) * left * c
            return w * share + (inner + inner * k * (x * x * 3.0))

        return either(x, lambda: w * (share + x * 0.5 * left * (c * (1.0 + 3.0 * k * (x * x)))), differentiated)


class ReluBackward(ProgramStep, kinds=("relu_backward",)):
    """The gradient of ReLU: w where x > 0, else 0."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient."""
        w, x = parents
        return selected(w, value_of(x) > 0.0)

    def through(self, parent: int, errors: CorrelatedErrors) -> CorrelatedErrors:
        """Return the errors of the result; an error of x that may move x across 0 changes the result by up to |w|."""
        if parent == 0 or not errors.any:
            return super().through(parent, errors)
        w, x = self.parents
        return CorrelatedErrors(np.where(np.abs(x) < LARGEST_DEVIATION * np.sqrt(errors.variance), np.square(w), 0.0))

    def stored_variance(self, arithmetic: Arithmetic) -> Array | float:
        """Return 0; nothing is rounded."""
        return 0.0


class TanhBackward(ProgramStep, kinds=("tanh_backward",)):
    """∂L/∂x = (1 − y²) w with y = tanh(x); w, y and the result have the same shape."""

    def program(self, *parents: Any) -> Any:
        """Return the gradient."""
        w, y = parents
        return w * (1.0 - y * y)
