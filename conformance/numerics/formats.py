"""Arrays in memory and on a device of torch; IEEE 754 binary formats and their units in the last place.

A format has `precision` significant bits p (including the hidden bit) and a smallest normal exponent `emin`. For a real x

    ulp(x) = 2^(max(floor(log2 |x|), emin) - (p - 1))

Below 2^emin the spacing is that of the subnormals, so an error scale is never zero (Muller et al., *Handbook of Floating-Point
Arithmetic*, 2nd ed., section 2.1 and definition 2.6).
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from conformance.errors import UsageError
from conformance.names import nearest
from conformance.numerics.memo import hashed_once

Kind = TypeVar("Kind", bound=np.generic)
Pairs = tuple[npt.NDArray[Kind], npt.NDArray[Kind]]


def as_array(value: Any, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return `value` as `numpy.asarray` does, but an array of another library, which NumPy would copy to memory, as it is.

    What is computed in the oracle and the judge may be on a device (`torch_array`). There, `as_array(x)` converts a result without
    copying it to memory, `numpy.asarray(x)` copies it, and `numpy.zeros(shape, like=x)` creates an array where x is.

    Args:
        value: an array, a number or nested sequences of numbers.
        dtype: data type of the result; that of `value` by default.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__array_function__"):
        return np.asarray(value, dtype)
    found: npt.NDArray[Any] = value if dtype is None else value.astype(dtype, copy=False)
    return found


def placed(value: Any, device: str | None, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Return a copy of an array or a tensor as a NumPy array in memory, or as a `TorchArray` on a device.

    Args:
        value: an array or a tensor.
        device: torch device string; None for an array in memory.
        dtype: data type of the result.
    """
    if device is None:
        return np.array(value, dtype)
    import torch

    from conformance.numerics.torch_array import TorchArray
    from conformance.numerics.torch_functions import moved

    tensor = moved(value.detach() if isinstance(value, torch.Tensor) else value, torch.device(device))
    found: npt.NDArray[Any] = TorchArray(tensor).astype(dtype)
    return found


def placed_like(value: npt.NDArray[Kind], other: npt.NDArray[Any]) -> npt.NDArray[Kind]:
    """Return an array where `other` is; an axis along which `value` is broadcast stays broadcast."""
    return np.asarray(value, like=other)


def neighbours(array: npt.NDArray[Kind], axis: int) -> Pairs[Kind]:
    """Return the first and the second elements of the pairs 0 and 1, 2 and 3, and so on along an axis.

    Example:
        >>> neighbours(np.array([True, False, True]), 0)
        (array([ True]), array([False]))
    """
    before, end = (slice(None),) * axis, array.shape[axis] // 2 * 2
    return array[(*before, slice(0, end, 2))], array[(*before, slice(1, end, 2))]


Array = npt.NDArray[np.float64]
Single = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Captured = Array | Single  # A candidate's numbers; float32 holds them exactly unless they are float64.

# Mask of a float64's exponent bits; these bits alone are the power of two at or below |x|, or 0 if x is subnormal.
_EXPONENT = 0x7FF << 52


# RMS of (ulp/√12)/|y| in units of 2^-p, for a mantissa m whose logarithm is uniform on [1, 2), as for products (Hamming 1970):
# √E[1/m²]/√3, with E[1/m²] = 3/8 / ln 2.
RELATIVE_RMS = math.sqrt(3.0 / 8.0 / math.log(2.0) / 3.0)
NUDGE = 2.0**-26  # Relative step of a difference quotient: √u of float64, where rounding and linearization errors are alike.


@hashed_once
@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Attributes:
        name: name of the dtype.
        precision: number of significant bits p, including the hidden bit.
        emin: exponent of the smallest normal number.
        emax: exponent of the largest finite number.
    """

    name: str
    precision: int
    emin: int
    emax: int

    @property
    def unit_roundoff(self) -> float:
        """The unit roundoff u = 2^-p: the largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number, 2^emin."""
        return 2.0**self.emin

    @property
    def largest(self) -> float:
        """The largest finite number, 2^emax · (2 − 2^(1−p))."""
        return 2.0**self.emax * (2.0 - 2.0 ** (1 - self.precision))

    @property
    def floor_variance(self) -> float:
        """The variance of rounding to the subnormal grid; at least float64's smallest normal number, to prevent underflow."""
        return max(2.0 ** (2 * max(self.emin - self.precision + 1, -500)) / 12.0, float(np.finfo(np.float64).tiny))

    def ulp(self, x: Array) -> Array:
        """Return the spacing of the format at |x|, elementwise; it is never zero."""
        power = as_array(as_array(x, np.float64).view(np.int64) & _EXPONENT).view(np.float64)
        np.clip(power, self.smallest_normal, 2.0**1023, out=power)
        power *= 2.0 ** (1 - self.precision)
        return power

    def rounding_variance(self, x: Array) -> Array:
        """Return the variance ulp²/12 of rounding x to nearest, uniform on ±ulp/2 (Widrow and Kollár, 2008, section 1)."""
        variance = self.ulp(x)
        variance *= variance
        variance /= 12.0
        return np.maximum(variance, self.floor_variance, out=variance)

    def stored(self, x: Array) -> Captured:
        """Return x rounded to nearest, in the smaller of float32 and float64 that holds every number of the format."""
        if self.name == "float32":
            with np.errstate(over="ignore"):
                return as_array(x.astype(np.float32))
        return self.round(x) if self.name == "float64" else self.round(x).astype(np.float32)

    def round(self, x: Array) -> Array:
        """Return x rounded to nearest, ties to even; values beyond the largest finite number overflow to infinity."""
        if self.name in ("float16", "float32", "float64"):
            with np.errstate(over="ignore"):
                return as_array(x.astype(self.name), np.float64)
        spacing = self.ulp(x)
        rounded = np.rint(x / spacing) * spacing
        overflown = np.abs(rounded) > self.largest
        return np.where(overflown, np.copysign(np.inf, x), rounded) if overflown.any() else as_array(rounded)


FORMATS = {
    f.name: f
    for f in (
        Format("float64", 53, -1022, 1023),
        Format("float32", 24, -126, 127),
        Format("bfloat16", 8, -126, 127),
        Format("float16", 11, -14, 15),
    )
}


def format_named(name: str) -> Format:
    """Return the format called `name`.

    Raises:
        UsageError: there is no such format.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(f"no floating-point format {name!r}; {nearest(name, FORMATS)}") from None
