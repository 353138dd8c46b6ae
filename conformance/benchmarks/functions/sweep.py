"""Sweeps: every float32, every number of a half-precision format, and a sample of float64 against extended precision."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.numerics.formats import FORMATS, Format
from conformance.numerics.function_errors import MeasuredErrors, measured, summarized
from conformance.numerics.functions import Function

Kernel = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

# Magnitudes between which every float32 is measured; below them, a function equals the first term of its series.
CORE = (2.0**-20, 2.0**20)
SPARSE = 1021  # Distance of arguments outside CORE: a prime, so that all bits of the mantissa vary.
CHUNK = 2**14  # Arguments per call: a few MB in total, which fit into a processor's cache.
BLOCK = 256  # Number of neighbouring arguments summarized together.
SAMPLE = 4096  # Number of float64 arguments.
DIGITS = 40  # Decimal digits of extended precision.


def every_float32(function: Function, kernel: Kernel, stride: int = 1) -> MeasuredErrors:
    """Return the errors over all of float32, or over every `stride`-th number of it."""
    total = MeasuredErrors()
    for x, step in _float32(function, stride):
        total = total + measured(function, x, kernel(x), FORMATS["float32"], max(BLOCK // step, 1))
    return total


def _float32(function: Function, stride: int) -> Iterator[tuple[npt.NDArray[np.float32], int]]:
    """Yield arguments where the function is neither constant nor infinite, by sign and magnitude, with their distance."""
    tiny, largest = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    for sign, limit in ((1.0, function.upper), (-1.0, -function.lower)):
        edges = [min(max(e, tiny), min(limit, largest)) for e in (tiny, *CORE, largest)]
        for start, stop, sparse in zip(edges, edges[1:], (SPARSE, 1, SPARSE), strict=False):
            first, last = (int(np.float32(e).view(np.uint32)) for e in (start, stop))
            step = sparse * stride
            for at in range(first, last, CHUNK * step):
                bits = np.arange(at, min(at + CHUNK * step, last), step, dtype=np.uint32)
                yield np.float32(sign) * bits.view(np.float32), step


def every_half(function: Function, kernel: Kernel, storage: Format) -> MeasuredErrors:
    """Return the errors over all numbers of a half-precision format, which float32 holds exactly."""
    bits = np.arange(2**16, dtype=np.uint32)
    is_float16 = storage.name == "float16"
    x = bits.astype(np.uint16).view(np.float16).astype(np.float32) if is_float16 else (bits << 16).view(np.float32)
    x = np.sort(x[np.isfinite(x) & (x >= max(function.lower, -65504.0)) & (x <= min(function.upper, 65504.0))])
    return measured(function, x, kernel(x), storage)


def sampled_float64(function: Function, kernel: Kernel) -> MeasuredErrors:
    """Return the errors at a sample of float64, spaced evenly and evenly in magnitude, against 40 digits."""
    import mpmath

    limits = max(function.lower, -700.0), min(function.upper, 700.0)
    magnitudes = np.exp2(np.linspace(-20.0, np.log2(limits[1]), SAMPLE // 4))
    x = np.concatenate([np.linspace(*limits, SAMPLE // 2), magnitudes, -magnitudes])
    x = np.unique(x[(x > limits[0]) & (x < limits[1])])
    computed = np.asarray(kernel(x), np.float64)
    with mpmath.workdps(DIGITS):
        true = [_exact(mpmath, function.name, mpmath.mpf(float(v))) for v in x]
        error = np.array([float(abs(mpmath.mpf(float(c)) - t)) for c, t in zip(computed, true, strict=True)])
        y = np.array([float(t) for t in true])
    return summarized(function, x, y, error, FORMATS["float64"])


def _exact(mp: Any, name: str, x: Any) -> Any:
    """Return the function in extended precision."""
    if name == "gelu":
        return x / 2 * mp.erfc(-x / mp.sqrt(2))
    if name == "gelu_tanh":
        return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))
    if name == "sigmoid":
        return 1 / (1 + mp.exp(-x))
    return {"erf": mp.erf, "exp": mp.exp, "tanh": mp.tanh, "log": mp.log, "rsqrt": lambda v: 1 / mp.sqrt(v)}[name](x)
