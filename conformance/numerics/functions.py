"""Library functions: their exact values, and how the errors of an implementation are measured and bounded.

An implementation of a function f is described by an error bound with an absolute and a relative part,

    |computed − f(x)| ≤ absolute · scale(x) + ulp · ULP(f(x))

where ULP(y) is the spacing of the format at y, and scale(x) = 1. For GELU = x/2 · (1 + g(x)), scale(x) = |x|/2, so that
`absolute` is an error of the inner function g, erf or tanh. Neither part is sufficient alone: an approximation of erf with an
absolute error of 1e-7 is off by thousands of ULP where 1 + erf cancels, and the results of exp have any magnitude.

Among all pairs (absolute, ulp) that cover every measured error, `MeasuredErrors.bound` selects the pair with the smallest mean over
results uniform on [0, 1], which is a linear program in two unknowns. ULP is u · 2^-k on [2^-(k+1), 2^-k), with u = 2^-p, so its
mean is

    Σ_k 2^-(k+1) · u · 2^-k = 2u/3

Functions without a zero (exp, rsqrt) have `absolute` = 0.

To add a function, or to change the bound of one (GELU, exp, tanh, …):

1. Write its exact value, interval and scale in `FUNCTIONS` below. A function that torch does not have under its name is excluded
   from the comprehension in `numerics.machine.torch_functions` and added there by name.
2. Name each library's implementation in `conformance.benchmarks.functions.libraries`, and the function in extended precision in
   `conformance.benchmarks.functions.sweep`. A bound that a vendor states is a row of `numerics/documented.json`.
3. Run `python -m conformance.benchmarks.functions --write`, which measures the libraries and writes `numerics/functions.json`.
4. Use the bound in `roundings` of the step in `conformance.oracle`: `arithmetic.functions.error` where the step is the function,
   `arithmetic.functions.relative` where the function is one of several operations (`numerics.accuracy`).
5. Run `conformance/tests/test_function_accuracy.py`, for the bounds; `test_mathematics.py`, for the Jacobians; and
   `test_arithmetic_model_fit.py`, which judges correct variants of whole networks, for the roundings.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfc, expit

from conformance.numerics.formats import Array, Format

Real = npt.NDArray[np.floating[Any]]

# Bins of ULP/scale per octave; the smallest value represents its whole bin, so a bound is at most a factor 2^(1/8) too large.
BINS = 8


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
    return np.asarray(outer * (x + cubic * x**3))


def gelu_argument_slope(x: Array) -> Array:
    """Return the derivative of `gelu_argument`, √(2/π) (1 + 3 · 0.044715 x²)."""
    return np.asarray(TANH_OUTER * (1.0 + 3.0 * TANH_CUBIC * x**2))


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
        Function("erf", lambda x: np.asarray(erf(x)), -5.0, 5.0),
        Function("gelu", lambda x: np.asarray(x / 2.0 * erfc(-x * math.sqrt(0.5))), -14.0, 14.0, _half, ulp=1.5),
        Function("gelu_tanh", lambda x: np.asarray(x * expit(2.0 * gelu_argument(x))), -14.0, 14.0, _half, ulp=1.5),
        Function("exp", np.exp, -87.0, 88.5, has_zero=False),
        Function("tanh", np.tanh, -10.0, 10.0),
        Function("log", np.log, 0.0, math.inf),
        Function("rsqrt", lambda x: np.asarray(1.0 / np.sqrt(x)), 0.0, math.inf, has_zero=False),
        Function("sigmoid", lambda x: np.asarray(expit(x)), -87.0, 30.0),
    )
}


@dataclass(frozen=True)
class Bound:
    """An error bound: |error| ≤ absolute · scale + ulp · ULP of the result."""

    absolute: float
    ulp: float

    def contains(self, other: "Bound") -> bool:
        """Return whether this bound is at least as large as `other` for every result."""
        return self.absolute >= other.absolute and self.ulp >= other.ulp


@dataclass(frozen=True)
class Largest:
    """The largest error, and the argument at which it occurs."""

    value: float = 0.0
    at: float = 0.0

    def or_larger(self, other: "Largest") -> "Largest":
        """Return the larger of two errors."""
        return self if self.value >= other.value else other


@dataclass(frozen=True)
class MeasuredErrors:
    """The measured errors of one implementation.

    Attributes:
        absolute: largest error, in units of the scale.
        ulp: largest error in ULP, over results that are normal numbers.
        frontier: largest error in units of the scale, by bin of ULP/scale.
        points: number of arguments evaluated.
    """

    absolute: Largest = field(default_factory=Largest)
    ulp: Largest = field(default_factory=Largest)
    frontier: Mapping[int, float] = field(default_factory=dict)
    points: int = 0

    def __add__(self, other: "MeasuredErrors") -> "MeasuredErrors":
        """Return the errors over the arguments of both operands."""
        bins = self.frontier.keys() | other.frontier.keys()
        return MeasuredErrors(
            self.absolute.or_larger(other.absolute),
            self.ulp.or_larger(other.ulp),
            {b: max(self.frontier.get(b, 0.0), other.frontier.get(b, 0.0)) for b in bins},
            self.points + other.points,
        )

    def exceed(self, bounds: Iterable[Bound]) -> bool:
        """Return whether some error is larger than every one of these bounds allows."""
        known = tuple(bounds)
        return any(
            error > max(b.absolute + b.ulp * 2.0 ** (number / BINS) for b in known) for number, error in self.frontier.items()
        )

    def bound(self, function: Function, evaluated: Format) -> Bound:
        """Return the pair (absolute, ulp) with the smallest mean that covers all errors; infinite if an error is not finite.

        Args:
            function: the function that was measured.
            evaluated: the format that it was evaluated in.
        """
        if not self.frontier:
            return Bound(0.0, 0.0)
        bins = sorted(self.frontier)
        spacing, error = np.exp2(np.array(bins) / BINS), np.array([self.frontier[b] for b in bins])
        if not np.isfinite(error).all():
            return Bound(math.inf, math.inf)
        if function.ulp is not None:
            return Bound(max(float((error - function.ulp * spacing).max()), 0.0), function.ulp)
        if not function.has_zero:
            return Bound(0.0, float((error / spacing).max()))
        unit = evaluated.unit_roundoff  # The unit of all values below, so that the solver's numbers are near 1.
        left = np.stack([np.ones_like(spacing), spacing / unit], 1)
        size = left.max(1, keepdims=True)  # Rows are divided by their maximum, since spacings range over 80 decades.
        from scipy.optimize import linprog  # Slow to import, and only needed when a machine is measured.

        solved = linprog([1.0, 2.0 / 3.0], -left / size, -error / unit / size[:, 0], bounds=[(0.0, None)] * 2)
        absolute, ulp = float(solved.x[0]) * unit, float(solved.x[1])
        short = error - absolute - ulp * spacing  # Violations within the solver's tolerance.
        return Bound(absolute + float(short.max(initial=0.0)), ulp)


def measured(function: Function, x: Real, computed: Real, storage: Format, block: int = 1) -> MeasuredErrors:
    """Return the errors of the results `computed` at arguments x, relative to the function's value in float64.

    Args:
        function: the function that was computed.
        x: arguments.
        computed: results of the implementation.
        storage: format in which the results are stored.
        block: number of neighbouring arguments summarized together, by their largest error and smallest ULP; requires ordered x
            if larger than 1.
    """
    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        y = function.true(wide)
        error = np.abs(np.asarray(computed, np.float64) - y)
    return summarized(function, wide, y, error, storage, block)


def summarized(function: Function, x: Array, y: Array, error: Array, storage: Format, block: int = 1) -> MeasuredErrors:
    """Return the summary of the errors `error` at arguments x with results y; NaN errors count as infinite.

    Results below the format's smallest normal number, which may be flushed to zero, and results that overflow are left out.

    Args:
        function: the function that was computed.
        x: arguments.
        y: exact results.
        error: magnitudes of the errors.
        storage: format in which the results are stored.
        block: number of neighbouring arguments summarized together.
    """
    scale = function.scale(x)
    keep = (np.abs(y) >= storage.smallest_normal) & (np.abs(y) <= storage.largest) & (scale > 0.0)
    if not keep.any():
        return MeasuredErrors(points=x.size)
    error, scale = np.where(np.isnan(error), np.inf, error), np.where(keep, scale, 1.0)
    spacing = storage.ulp(np.where(keep, y, 1.0))
    scaled, relative = (np.where(keep, error / unit, 0.0) for unit in (scale, spacing))
    i, j = int(scaled.argmax()), int(relative.argmax())
    return MeasuredErrors(
        Largest(float(scaled[i]), float(x[i])),
        Largest(float(relative[j]), float(x[j])),
        _frontier(np.where(keep, spacing / scale, np.inf), scaled, block),
        x.size,
    )


def _frontier(spacing: Array, scaled: Array, block: int) -> dict[int, float]:
    """Return the largest error for each bin of the spacing."""
    starts = np.arange(0, spacing.size, block)
    spacing, scaled = np.minimum.reduceat(spacing, starts), np.maximum.reduceat(scaled, starts)
    finite = np.isfinite(spacing)
    bins, which = np.unique(np.floor(np.log2(spacing[finite]) * BINS).astype(int), return_inverse=True)
    largest = np.zeros(bins.size)
    np.maximum.at(largest, which, scaled[finite])
    return {int(b): float(e) for b, e in zip(bins, largest, strict=True)}
