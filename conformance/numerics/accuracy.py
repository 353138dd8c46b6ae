"""How accurate library functions are: the table `functions.json`, and the bound that it puts on a correct implementation.

Each row is one implementation of one function, measured (`python -m conformance.benchmarks.functions --write`) or as its maker
documents it. A candidate may call any of them, so that its error is bounded by the largest of all rows,

    |error| ≤ max_k (absolute_k + ulp_k · ULP(y))

the same on every machine: a verdict does not depend on where it is made, unless the machine's library exceeds the table (see
`numerics.machine`) and adds a row of its own.

How the bound enters sigma. Where a step is the function itself (GELU, tanh), the error is deterministic and its sign is fixed:
the bound is subtracted from the residual's magnitude before it is compared (`Roundings.bound`). Where the function is one of many
inner operations (exp in softmax, rsqrt in LayerNorm), the error is taken as uniform within the bound, of variance bound²/3: what an
element's neighbours make of it differs in sign and size. In sinusoidal positions exp is part of a bound.

Half formats are evaluated in float32 and rounded once to storage, but for rsqrt of some kernels, which no step stores; their rows
bound nothing.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib.resources import files
from typing import Any

import numpy as np

from conformance.numerics.formats import FORMATS, Array, Format
from conformance.numerics.functions import Bound

TABLE = "functions.json"
DOCUMENTED = "documented.json"


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The errors that library functions may make.

    Attributes:
        bounds: by function and format of evaluation, of each implementation that is not dominated by another.
    """

    bounds: Mapping[tuple[str, str], tuple[Bound, ...]]

    def error(self, function: str, y: Array, evaluated: Format) -> Array:
        """The largest error at results y, evaluated in that format."""
        spacing = evaluated.ulp(y)
        bounds = _upper(self._of(function, evaluated), float(spacing.max(initial=0.0)))
        first, *others = (b.absolute + b.ulp * spacing for b in bounds)
        return np.asarray(reduce(np.maximum, others, first))

    def relative(self, function: str, evaluated: Format) -> float:
        """The largest relative error of a function that has no zero: 2u · ulp, since ULP(y) ≤ 2u |y|."""
        return 2.0 * evaluated.unit_roundoff * max(b.ulp for b in self._of(function, evaluated))

    def absolute(self, function: str, evaluated: Format) -> float:
        """The largest absolute part over the scale: of a GELU, the error of its erf or tanh."""
        return max(b.absolute for b in self._of(function, evaluated))

    def _of(self, function: str, evaluated: Format) -> tuple[Bound, ...]:
        """Of a half format: evaluated in float32 and rounded, so half an ULP, and a float32 ULP is at most 2^-13 of one."""
        if evaluated.precision >= FORMATS["float32"].precision:
            return self.bounds[function, evaluated.name]
        return tuple(Bound(b.absolute, 0.5 + b.ulp * 2.0**-13) for b in self.bounds[function, "float32"])

    def including(self, function: str, bound: Bound, evaluated: Format) -> "Accuracy":
        """The same with one implementation more."""
        key = (function, evaluated.name)
        return Accuracy({**self.bounds, key: _undominated([*self.bounds[key], bound])})


def _upper(bounds: Iterable[Bound], largest: float) -> list[Bound]:
    """Those that are not below another one at both ends of the spacings from 0 to `largest`, and so, being lines, between them."""
    found: list[Bound] = []
    for bound in sorted(bounds, key=lambda b: (b.absolute, b.ulp), reverse=True):
        if not found or bound.absolute + bound.ulp * largest > found[-1].absolute + found[-1].ulp * largest:
            found.append(bound)
    return found


def _undominated(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Those that no other one contains."""
    unique = list(dict.fromkeys(bounds))
    return tuple(b for b in unique if not any(o != b and o.contains(b) for o in unique))


@cache
def known() -> Accuracy:
    """The accuracy of the implementations in the table."""
    found: dict[tuple[str, str], list[Bound]] = {}
    for row in rows():
        if row.get("bound") is not None and "incorrect" not in row:
            found.setdefault((row["function"], row["dtype"]), []).append(Bound(**row["bound"]))
    return Accuracy({key: _undominated(bounds) for key, bounds in found.items()})


@cache
def rows() -> tuple[Mapping[str, Any], ...]:
    """Every row of the table: what was measured, then what is documented."""
    folder = files("conformance.numerics")
    return tuple(row for name in (TABLE, DOCUMENTED) for row in json.loads((folder / name).read_text())["rows"])


def worst_places(function: str) -> list[float]:
    """The arguments at which an implementation in the table makes its largest errors in float32."""
    of_it = (row for row in rows() if row["function"] == function and row["dtype"] == "float32")
    return [at for row in of_it for at in row.get("at", ()) if math.isfinite(at)]
