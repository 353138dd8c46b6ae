"""Library functions: their exact values, and the form of the bound of an implementation's error.

An implementation of a function f is described by an error bound with an absolute and a relative part,

    |computed − f(x)| ≤ absolute · scale(x) + ulp · ULP(f(x))

where ULP(y) is the spacing of the format at y, and scale(x) = 1. For GELU = x/2 · (1 + g(x)), scale(x) = |x|/2, so that
`absolute` is an error of the inner function g, erf or tanh. Neither part is sufficient alone: an approximation of erf with an
absolute error of 1e-7 is off by thousands of ULP where 1 + erf cancels, and the results of exp have any magnitude. Functions
without a zero (exp, rsqrt) have `absolute` = 0.

The numbers of the bounds, and how to add a function or to change its bound, are in `numerics.function_error_bounds`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.special import erfc, expit

from conformance.numerics.formats import Array, as_array

CHUNK = 2**14  # number of elements that stay in a processor's cache, and that PyTorch computes on the calling thread


def erf(x: Array) -> Array:
    """Return the error function: in memory PyTorch's, whose error is 1 ULP at most, in a quarter of the time of SciPy's, 2 ULP."""
    if type(x) is not np.ndarray or x.dtype != np.float64:
        return as_array(special.erf(x))
    return _in_chunks("erf_", x)


def cumulative_sums(x: Array) -> Array:
    """Return the partial sums along the last axis, (..., n); PyTorch's take a third of the time of NumPy's."""
    if type(x) is not np.ndarray or x.dtype != np.float64:
        return as_array(np.cumsum(x, -1))
    return _in_chunks("cumsum_", x.reshape(-1, x.shape[-1]), -1).reshape(x.shape)


def _in_chunks(method: str, x: Array, *arguments: int) -> Array:
    """Return the result of a method of tensors that works in place, for parts of the first axis."""
    import torch

    result = np.array(x, order="C", ndmin=1)
    rows = max(CHUNK * len(result) // max(result.size, 1), 1)
    for start in range(0, len(result), rows):
        getattr(torch.from_numpy(result[start : start + rows]), method)(*arguments)
    return result.reshape(x.shape)


def _one(x: Array) -> Array:
    return np.ones_like(x)


def _half(x: Array) -> Array:
    return np.abs(x) / 2.0


# Constants of the approximations of GELU in Hendrycks and Gimpel 2016, section 2.
TANH_OUTER: float = np.sqrt(2.0 / np.pi)
TANH_CUBIC = 0.044715
SIGMOID_FACTOR = 1.702


def gelu_argument(x: Array, outer: float = TANH_OUTER, cubic: float = TANH_CUBIC) -> Array:
    """Return t = √(2/π) (x + 0.044715 x³), the argument of tanh in the tanh form of GELU, or t with other constants."""
    return as_array(outer * (x + cubic * (x * x * x)))  # NumPy's x**3 takes a hundred times as long


@dataclass(frozen=True)
class Function:
    """A function of one real variable.

    Attributes:
        name: name in the table; torch's name where there is one.
        true: value in float64, accurate to a few float64 ULP and free of cancellation.
        lower, upper: outside this interval, the float32 result is constant, 0, the argument itself or infinite.
        scale: unit of the absolute part of the bound, as a function of the argument.
        has_zero: whether the bound has an absolute part; if not, only the relative error is bounded.
        ulp: relative part of the bound if it is prescribed and only the absolute part is fitted. For GELU it is 1.5: 1 ULP for the
            rounding of 1 + g and 1/2 for the rounding of the product, both of which sigma counts as random.
    """

    name: str
    true: Callable[[Array], Array]
    lower: float
    upper: float
    scale: Callable[[Array], Array] = _one
    has_zero: bool = True
    ulp: float | None = None


FUNCTIONS: Mapping[str, Function] = {
    f.name: f
    for f in (
        Function("erf", erf, -5.0, 5.0),
        Function("gelu", lambda x: as_array(x / 2.0 * erfc(-x * math.sqrt(0.5))), -14.0, 14.0, _half, ulp=1.5),
        Function("gelu_tanh", lambda x: as_array(x * expit(2.0 * gelu_argument(x))), -14.0, 14.0, _half, ulp=1.5),
        Function("exp", np.exp, -87.0, 88.5, has_zero=False),
        Function("tanh", np.tanh, -10.0, 10.0),
        Function("log", np.log, 0.0, math.inf),
        Function("rsqrt", lambda x: as_array(1.0 / np.sqrt(x)), 0.0, math.inf, has_zero=False),
        Function("sigmoid", lambda x: as_array(expit(x)), -87.0, 30.0),
    )
}
