"""Faults of quantization: weights or operands as integers or short floating-point numbers, scaled by tensor, feature or block.

The forms, each computed as in its library:

    int8           w ≈ s k, k in −127 … 127, s = max |w| / 127 over a tensor or an output feature
    int4           the same with 7 for 127
    int8 blocks    w ≈ s k, k in −127 … 127, s = max |w| / 127 over 32 inputs, stored in float16: ggml's Q8_0
    int4 blocks    w ≈ s k, k in −8 … 7, s = −w*/8 for w* of largest magnitude over 32 inputs, stored in float16: ggml's Q4_0
    nf4 blocks     w ≈ s c, c one of sixteen levels, s = max |w| over 64 inputs: Dettmers et al. 2023, appendix E
    float8         w ≈ s f, f of 4 significant bits (E4M3), s = max |w| / 448 over a tensor: Micikevicius et al. 2022

Weights of few significant digits lie on ties, so the quotients that are rounded are computed in float32, as the libraries do.
"""

from collections.abc import Callable
from functools import partial
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

Quantiser = Callable[[Array], Array]

_LEVELS = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)  # fmt: skip
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


def symmetric(weight: Array, axis: int | None, largest: float = 127.0) -> Array:
    """Return the weight as integers −`largest` … `largest` times a step, one per tensor (`axis` None) or output feature (1)."""
    w = weight.astype(np.float32)
    step = np.abs(w).max(axis, keepdims=axis is not None) / np.float32(largest)
    return as_array(np.rint(quotients(w, step)) * step, np.float64)


def _in_blocks(size: int, quantised: Callable[[Single], Single]) -> Quantiser:
    """Return the quantizer of blocks of `size` weights in memory order; it does not change a weight that is no multiple of it."""

    def quantiser(weight: Array) -> Array:
        if weight.size % size:
            return weight
        blocks = weight.astype(np.float32).reshape(-1, size)
        return as_array(quantised(blocks).reshape(weight.shape), np.float64)

    return quantiser


def _held(step: Single) -> Single:
    return step.astype(np.float16).astype(np.float32)


def _int8_block(w: Single) -> Single:
    step = np.abs(w).max(-1, keepdims=True) / np.float32(127.0)
    return as_array(np.rint(quotients(w, step)) * _held(step))


def _int4_block(w: Single) -> Single:
    largest = np.take_along_axis(w, np.abs(w).argmax(-1)[..., None], -1)
    step = as_array(largest / np.float32(-8.0))
    return as_array((np.clip(np.floor(quotients(w, step) + np.float32(8.5)), 0, 15) - 8) * _held(step), np.float32)


def _nf4_block(w: Single) -> Single:
    step = np.abs(w).max(-1, keepdims=True)
    between = (_LEVELS[1:] + _LEVELS[:-1]) / 2
    return as_array(_LEVELS[np.searchsorted(between, quotients(w, step))] * step, np.float32)


def _float8(weight: Array) -> Array:
    w = weight.astype(np.float32)
    step = np.abs(w).max() / np.float32(_LARGEST)
    x = quotients(w, step).astype(np.float64)
    return as_array(np.rint(x / _unit(x)) * _unit(x) * float(step), np.float64)


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
    heads = split_heads(last, step.site.architecture.head_size).astype(np.float32)
    scale = np.abs(heads).max(-1, keepdims=True) / np.float32(127.0)
    quotient = quotients(heads, scale)
    levels = np.rint(quotient)
    near = is_near_tie(quotient)
    ties = merge_heads(as_array(near * scale**2, np.float64))
    held = merge_heads(as_array(levels, np.float64) * scale)
    read = step.replaced(parents=(first, held))
    return with_slack_of_parent(read, lambda _, arithmetic: ties + arithmetic.storage.rounding_variance(held), 1)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    *(
        Fault(f"precision-{name}{end}", LINEARS,
              f"the weights are rounded to {int(2 * largest) + 1} levels per {group}: {name} quantisation",
              other_weight(partial(symmetric, axis=axis, largest=largest)), tried=FAILED)
        for end, axis, group in (("", None, "tensor"), ("-channel", 1, "output feature"))
        for name, largest in (("int8", 127.0), ("int4", 7.0))
    ),
    *(
        Fault(f"precision-{name}", LINEARS, f"the weights are rounded to {levels}: quantisation", other_weight(quantiser),
              tried=ALONE)
        for name, levels, quantiser in (
            ("int8-block", "255 levels in blocks of 32", _in_blocks(32, _int8_block)),
            ("int4-block", "16 levels in blocks of 32", _in_blocks(32, _int4_block)),
            ("nf4-block", "16 levels (NF4) in blocks of 64", _in_blocks(64, _nf4_block)),
            ("float8", "float8 (E4M3), scaled per tensor", _float8),
        )
    ),
    Fault("precision-int8-cache", SCORES | CONTEXT,
          "the keys, or the values, are rounded to 255 levels for each token and head: int8 quantisation", _cache_of_bytes,
          tried=ALONE),
    Fault("precision-float8-inputs", PRODUCTS, "the inputs are rounded to float8 (E4M3): quantisation",
          lambda step, _: step.replaced(parents=tuple(_unscaled_float8(p) for p in step.parents)), tried=ALONE),
    Fault("result-float8", LINEARS, "the result is rounded to float8 (E4M3): quantisation", _float8_result, tried=ALONE),
)
# fmt: on
