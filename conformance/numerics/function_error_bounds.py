"""The error bounds of library functions (GELU, erf, tanh, exp, rsqrt, …): the numbers, and what a step takes from them.

The numbers are rows of two tables, `measured_error_bounds.json` (`python -m conformance.benchmarks.functions --write`) and
`documented_error_bounds.json` (stated by vendors), one row for each implementation of a function. A candidate may call any of these
implementations, so its error is bounded by the maximum over all rows k of a function,

    |error| ≤ max_k (absolute_k + ulp_k · ULP(y))

A function that only a fused kernel computes in this way, such as exp in attention, is measured through the kernel.

This bound is the same on every machine, so a verdict does not depend on where the suite runs. The exception is a machine whose
library exceeds the table: that library is added as one more row (see `numerics.machine`).

The bound enters sigma in one of two ways:

- Where a step is the function itself (GELU, tanh), the error is deterministic and has a fixed sign: the bound is subtracted from
  the magnitude of the residual before the comparison (`Roundings.bound`). In sinusoidal positions, the error of exp is part of
  such a bound.
- Where the function is one of several inner operations (exp in softmax, rsqrt in LayerNorm), the error is modelled as uniform
  within the bound, with variance bound²/3, because its effect on the neighbouring elements varies in sign and magnitude.

Half-precision formats are evaluated in float32 and rounded once to storage, so their own rows are not used as bounds. Some rsqrt
kernels are an exception, but no step stores the result of rsqrt.

To change the bound of a function (GELU, exp, tanh, …):

1. Add the implementation whose error is larger: a bound that a vendor states is a row of `documented_error_bounds.json`; a library
   that can be measured is named in `conformance.benchmarks.functions.libraries`, and the command above measures it and writes
   `measured_error_bounds.json`. The bound of every step that uses the function follows.
2. The bound of GELU as a whole is that of erf or tanh, or of a fused kernel (`ProgramStep.fused`), whichever is larger.
3. Run `conformance/tests/test_function_error_bounds.py`, for the bounds, and `test_correct_variants.py`, which judges correct
   variants of whole networks.

To add a function:

1. Write its exact value, interval and scale in `numerics.functions.FUNCTIONS`. A function that torch does not have under its name
   is excluded from the comprehension in `numerics.machine.torch_functions` and added there by name. Name the function in extended
   precision in `conformance.benchmarks.functions.sweep`.
2. Measure it as in step 1 above.
3. Name it in `oracle.program.OPERATIONS`, with its derivative; what errors of which it makes is decided in `oracle.trace`.
4. Run the tests above, and `test_mathematics.py`, for the Jacobians.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib.resources import files
from typing import Any

import numpy as np

from conformance.numerics.formats import FORMATS, Array, Format, as_array

MEASURED = "measured_error_bounds.json"
DOCUMENTED = "documented_error_bounds.json"


@dataclass(frozen=True)
class Bound:
    """An error bound: |error| ≤ absolute · scale + ulp · ULP of the result."""

    absolute: float
    ulp: float

    def contains(self, other: "Bound") -> bool:
        """Return whether this bound is at least as large as `other` for every result."""
        return self.absolute >= other.absolute and self.ulp >= other.ulp


@dataclass(frozen=True, eq=False)
class FunctionErrorBounds:
    """The error bounds of library functions.

    Attributes:
        bounds: bounds by (function, format of evaluation); one for each implementation that no other implementation dominates.
    """

    bounds: Mapping[tuple[str, str], tuple[Bound, ...]]

    def error(self, function: str, y: Array, evaluated: Format) -> Array:
        """Return the elementwise largest error of a function's results y when it is evaluated in the format `evaluated`."""
        spacing = evaluated.ulp(y)
        bounds = _upper(self._of(function, evaluated), float(spacing.max(initial=0.0)))
        first, *others = (b.absolute + b.ulp * spacing for b in bounds)
        return as_array(reduce(np.maximum, others, first))

    def relative(self, function: str, evaluated: Format) -> float:
        """Return the largest relative error of a function without zeros: 2u · ulp, since ULP(y) ≤ 2u |y|."""
        return 2.0 * evaluated.unit_roundoff * max(b.ulp for b in self._of(function, evaluated))

    def absolute(self, function: str, evaluated: Format) -> float:
        """Return the largest absolute part of the bounds, in units of the scale; for GELU this is the error of its erf or tanh."""
        return max(b.absolute for b in self._of(function, evaluated))

    def _of(self, function: str, evaluated: Format) -> tuple[Bound, ...]:
        """Return the bounds of a function.

        A half-precision result is evaluated in float32 and rounded: the error is half an ULP plus the float32 error, where a
        float32 ULP is at most 2^-13 of a half-precision ULP.
        """
        if evaluated.precision >= FORMATS["float32"].precision:
            return self.bounds[function, evaluated.name]
        return tuple(Bound(b.absolute, 0.5 + b.ulp * 2.0**-13) for b in self.bounds[function, "float32"])

    def including(self, function: str, bound: Bound, evaluated: Format) -> "FunctionErrorBounds":
        """Return these bounds with the bound of one more implementation."""
        key = (function, evaluated.name)
        return FunctionErrorBounds({**self.bounds, key: _undominated([*self.bounds[key], bound])})


def _upper(bounds: Iterable[Bound], largest: float) -> list[Bound]:
    """Return the bounds that form the upper envelope on [0, `largest`].

    A bound is left out if another bound is at least as large at both ends of the interval of spacings. Bounds are linear in the
    spacing, so a bound that is lower at both ends is lower everywhere between them.
    """
    found: list[Bound] = []
    for bound in sorted(bounds, key=lambda b: (b.absolute, b.ulp), reverse=True):
        if not found or bound.absolute + bound.ulp * largest > found[-1].absolute + found[-1].ulp * largest:
            found.append(bound)
    return found


def _undominated(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Return the bounds that are not contained in another bound."""
    unique = list(dict.fromkeys(bounds))
    return tuple(b for b in unique if not any(o != b and o.contains(b) for o in unique))


@cache
def table_bounds() -> FunctionErrorBounds:
    """Return the bounds of the implementations in the tables."""
    found: dict[tuple[str, str], list[Bound]] = {}
    for row in rows():
        if row.get("bound") is not None and "incorrect" not in row:
            found.setdefault((row["function"], row["dtype"]), []).append(Bound(**row["bound"]))
    return FunctionErrorBounds({key: _undominated(bounds) for key, bounds in found.items()})


@cache
def rows() -> tuple[Mapping[str, Any], ...]:
    """Return all rows of the tables: the measured ones, then the documented ones."""
    folder = files("conformance.numerics")
    return tuple(row for name in (MEASURED, DOCUMENTED) for row in json.loads((folder / name).read_text())["rows"])


def worst_places(function: str) -> list[float]:
    """Return the finite arguments at which the implementations in the tables make their largest float32 errors."""
    of_it = (row for row in rows() if row["function"] == function and row["dtype"] == "float32")
    return [at for row in of_it for at in row.get("at", ()) if math.isfinite(at)]
