"""Faults of quantization: weights or operands as integers, scaled by tensor or feature, or as short floating-point numbers.

The forms, each computed as in its library:

    int8           w ≈ s k, k in −127 … 127, s = max |w| / 127 over a tensor or an output feature
    int4           the same with 7 for 127
    float8         of 4 significant bits (E4M3), without a scale: Micikevicius et al. 2022

Weights of few significant digits lie on ties, so the quotients that are rounded are computed in float32, as the libraries do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.faults.attention import CONTEXT, SCORES
from conformance.faults.changes import Altered, with_slack_of_parent
from conformance.faults.edits import other_weight
from conformance.faults.fault import ALONE, FAILED, LINEARS, PRODUCTS, Fault, FaultContext
from conformance.numerics.arithmetic import Arithmetic
from conformance.numerics.formats import FORMATS, Array, Mask, Single, as_array
from conformance.numerics.thresholds import FALSE_ALARM, max_threshold
from conformance.oracle import Step
from conformance.oracle.bilinear import merge_heads, split_heads

_LARGEST, _SMALLEST_EXPONENT, _BITS = 448.0, -6, 4  # Those of E4M3.


def quotients(weight: Single, step: Single) -> Single:
    """Return the weight divided by the step, in float32; where the step is 0, the weight."""
    return as_array(weight / np.where(step != 0.0, step, np.float32(1.0)), np.float32)


def distance_to_tie(quotient: npt.NDArray[np.floating[Any]]) -> Array:
    """Return the distance |q − ⌊q⌋ − 1/2| of each quotient from the nearest tie between two integers."""
    return as_array(np.abs(quotient - np.floor(quotient) - 0.5))


def is_near_tie(quotient: npt.NDArray[np.floating[Any]]) -> Mask:
    """Return where a quotient that was computed in float32 may be rounded either way.

    The candidate's and this one may each have up to four roundings, of a product, of quotients and of a reciprocal.
    """
    error = 8.0 * FORMATS["float32"].unit_roundoff * np.maximum(np.abs(quotient), 1.0)
    near: Mask = distance_to_tie(quotient) <= error
    return near


def symmetric(x: Array, axis: int | None, largest: float = 127.0) -> tuple[Array, Array]:
    """Return x as integers times a step, and the variance of what is next to a tie, which may be rounded either way.

    Args:
        x: the numbers.
        axis: the axis of whose slices each has a step; None for one step.
        largest: the integer that is the largest magnitude; of 127.5, integers are limited to −128 … 127.
    """
    wide = x.astype(np.float32)
    step = np.broadcast_to(np.abs(wide).max(axis, keepdims=True) / np.float32(largest), wide.shape)
    quotient = quotients(wide, step)
    rounded = np.clip(np.rint(quotient), -128.0, 127.0) * step
    return as_array(rounded, np.float64), as_array(is_near_tie(quotient) * step**2, np.float64)


def _unit(x: Array) -> Array:
    """Return the distance of neighbouring numbers of float8 (E4M3) at x, which is within their range."""
    return as_array(2.0 ** (np.maximum(np.frexp(x)[1] - 1, _SMALLEST_EXPONENT) + 1 - _BITS))


def _unscaled_float8(x: Array) -> Array:
    """Return x rounded to float8 (E4M3) without a scale; magnitudes beyond the largest number become it."""
    limited = np.clip(x, -_LARGEST, _LARGEST)
    unit = _unit(limited)
    return as_array(np.rint(limited / unit) * unit)


def _float8_result(step: Step, _: FaultContext) -> Step:
    """Return the step with its result rounded to float8; one whose error may take it across a tie may be rounded either way."""

    def slack(altered: Altered, arithmetic: Arithmetic) -> Array:
        x, own = np.clip(altered.inner.value, -_LARGEST, _LARGEST), altered.inner.roundings(arithmetic)
        unit, error = _unit(x), max_threshold(x.size, FALSE_ALARM) * np.sqrt(own.variance()) + as_array(own.bound)
        return np.where(distance_to_tie(x / unit) * unit <= error, unit**2, 0.0)

    return Altered(step, lambda inner: _unscaled_float8(inner.value), slack)


def _cache_of_bytes(step: Step, _: FaultContext) -> Step:
    """Return the step with keys, or values, of 255 levels for each token and head.

    A quotient next to a tie may be rounded either way; the product with the scale may be rounded to storage.
    """
    first, last = step.parents
    held, ties = map(merge_heads, symmetric(split_heads(last, step.site.architecture.head_size), -1))
    read = step.replaced(parents=(first, held))
    return with_slack_of_parent(read, lambda _, arithmetic: ties + arithmetic.storage.rounding_variance(held), 1)


def _weight(axis: int | None, largest: float) -> Callable[[Array], Array]:
    return lambda weight: symmetric(weight, axis, largest)[0]


# fmt: off
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"precision-{name}{end}", LINEARS,
              f"the weights are rounded to {int(2 * largest) + 1} levels per {group}: {name} quantisation",
              other_weight(_weight(axis, largest)), tried=FAILED)
        for end, axis, group in (("", None, "tensor"), ("-channel", 1, "output feature"))
        for name, largest in (("int8", 127.0), ("int4", 7.0))
    ),
    Fault("precision-int8-cache", SCORES | CONTEXT,
          "the keys, or the values, are rounded to 255 levels for each token and head: int8 quantisation", _cache_of_bytes,
          tried=ALONE),
    Fault("precision-float8-inputs", PRODUCTS, "the inputs are rounded to float8 (E4M3): quantisation",
          lambda step, _: step.replaced(parents=tuple(_unscaled_float8(p) for p in step.parents)), tried=ALONE),
    Fault("result-float8", LINEARS, "the result is rounded to float8 (E4M3): quantisation", _float8_result, tried=ALONE),
)
# fmt: on
