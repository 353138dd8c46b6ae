"""Functions of rows: softmax, log-softmax and LayerNorm, measured on random rows of typical lengths.

Their rows of the table are not used as bounds: sigma is derived from the functions they are composed of.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from conformance.benchmarks.functions.sweep import Kernel
from conformance.numerics.formats import FORMATS, Array
from conformance.numerics.function_errors import MeasuredErrors, summarized
from conformance.numerics.functions import Function

EPSILON = 1e-12  # Epsilon of LayerNorm.
LENGTHS = (2, 16, 128, 768, 4096)
ROWS = 512
SPREADS = (1.0, 8.0)  # Standard deviations of the elements of a row.


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _layer_norm(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON))


ROW_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
}


def row_errors(name: str, kernel: Kernel) -> MeasuredErrors:
    """Return the float32 errors of a library's function of this name; `at` holds an element of the row with the largest error."""
    total, function = MeasuredErrors(), Function(name, ROW_FUNCTIONS[name], -np.inf, np.inf)
    for x in _rows():
        y = ROW_FUNCTIONS[name](x)
        computed = np.asarray(kernel(x.astype(np.float32)), np.float64)
        total = total + summarized(function, x.ravel(), y.ravel(), np.abs(computed - y).ravel(), FORMATS["float32"])
    return total


def _rows() -> Iterator[Array]:
    """Yield random rows whose elements are float32 numbers."""
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        for spread in SPREADS:
            yield (spread * rng.standard_normal((ROWS, length))).astype(np.float32).astype(np.float64)
